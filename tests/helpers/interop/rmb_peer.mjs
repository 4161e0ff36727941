// RMB clients driven by JSON lines; see jsonlines.mjs.
//
// The package asks a chain who is who. Its chain client is a plain property, which is replaced here
// by a table.
//
// The package leaves it to its users how to serve. So services are put together here from its
// parts: the envelope that verifies, decrypts, encrypts and signs.

import { createRequire } from 'node:module';
import path from 'node:path';

import { MODULES, manifestOf, serve, settle, until } from './jsonlines.mjs';

// The package logs to stdout, where nothing but answers may stand.
console.log = console.info = console.debug = console.error;

// The package looks once a second for answers, twice a second whether it is connected, and pings
// every 20 seconds. Only how long it waits is changed.
const PING_MS = 20_000;
const delays = new Map([[1000, 10], [500, 10]]);

for (const name of ['setTimeout', 'setInterval']) {
  const original = globalThis[name];
  globalThis[name] = (run, ms, ...args) => original(run, delays.get(ms) ?? ms, ...args);
}

const NAME = '@threefold/rmb_direct_client';
const require = createRequire(path.join(MODULES, 'package.json'));
const { Client } = require(NAME);
const inside = (file) => require(path.join(MODULES, 'node_modules', NAME, 'dist', 'node', file));
const { default: ClientEnvelope } = inside('envelope.js');
const types = inside('types/lib/types.js');

const KINDS = ['request', 'response', 'error', 'ping', 'pong'];
const LIFE = 60; // seconds, of answers
const RETRIES = 5;

let clients = []; // each a Session, found by its number

// The package sends no tags and to no sessions. Here they are put in before it signs.
const { signEnvelope } = ClientEnvelope.prototype;
ClientEnvelope.prototype.signEnvelope = function () {
  const { tags, session } = this.signer.fields ?? {};
  if (tags) this.tags = tags;
  if (session) this.destination.connection = session;
  return signEnvelope.call(this);
};

function tableOf(records, updates) {
  const twins = new Map(records.map((record) => [record.id, record]));
  const copyOf = (record) => record && { ...record };
  return {
    connect: async () => {},
    disconnect: async () => {},
    twins: {
      getTwinIdByAccountId: async ({ accountId }) =>
        records.find((record) => record.accountId === accountId)?.id,
      get: async ({ id }) => copyOf(twins.get(id)),
      update: async (change) => ({ apply: async () => updates.push(change) }),
    },
  };
}

class Session {
  constructor({ url, secret, keyType, session, twins }) {
    this.received = [];
    this.requests = [];
    this.updates = [];
    this.connections = 0;
    const chain = 'ws://chain.invalid';
    this.client = new Client(chain, url, secret, session ?? undefined, keyType, RETRIES);
    // Else the next session of this twin would be this client.
    Client.connections.delete(`${url}:${secret}:${keyType}`);
    this.client.tfclient = tableOf(twins, this.updates);
    const create = this.client.createConnection;
    this.client.createConnection = () => {
      create.call(this.client);
      this.connections += 1;
      this.listen();
    };
    this.number = clients.push(this) - 1;
  }

  async connect() {
    await this.client.connect();
    // The package takes it that the table now has its key, and would encrypt without.
    const { id } = this.client.twin;
    this.client.twin.pk = (await this.client.tfclient.twins.get({ id })).pk;
  }

  listen() {
    const { con } = this.client;
    const forward = con.onmessage;
    con.onmessage = (event) => {
      const envelope = types.Envelope.deserializeBinary(event.data);
      this.received.push(summary(envelope));
      if (envelope.request) this.answer(envelope); // what fails there is uncaught, and so is seen
      else forward.call(con, event);
    };
  }

  envelope(inner, signer) {
    const { chainUrl, tfclient, twins } = this.client;
    return new ClientEnvelope(signer, inner, chainUrl, tfclient, twins);
  }

  async answer(received) {
    const { client } = this;
    const asked = this.envelope(received);
    const verified = await asked.verify();
    const told = summary(received);
    const data = told.sealed ? await asked.decrypt(client.mnemonics) : asked.plain;
    const text = Buffer.from(data).toString();
    const { command } = received.request;
    this.requests.push({ ...told, command, verified, text });
    if (command === 'silence') return;
    const reply = new types.Envelope({
      uid: received.uid,
      timestamp: Math.round(Date.now() / 1000),
      expiration: LIFE,
      source: client.source,
      destination: received.source,
    });
    if (command === 'fail') reply.error = new types.Error({ code: 7, message: `no ${text}` });
    else reply.response = new types.Response();
    const made = this.envelope(reply, client.signer);
    if (command === 'fail') made.plain = new Uint8Array();
    else if (told.sealed) made.cipher = await made.encrypt(text, client.mnemonics, asked.twin.pk);
    else made.plain = new Uint8Array(Buffer.from(text));
    made.signature = made.signEnvelope();
    if (command === 'forge') made.signature[1] ^= 1;
    client.con.send(made.serializeBinary());
  }

  async call({ run, data, to, minutes = 1, ...fields }) {
    const signer = Object.assign(Object.create(this.client.signer), { fields });
    const sender = Object.create(this.client, { signer: { value: signer } });
    return await this.client.read(await sender.send(run, data, to, minutes));
  }

  close() {
    this.client.responses.clear(); // what it would wait for two minutes
    return this.client.disconnect();
  }
}

function addressOf(address) {
  if (!address) return null;
  return { twin: address.twin, session: address.has_connection ? address.connection : null };
}

function summary(envelope) {
  return {
    kind: KINDS.find((kind) => envelope[kind]) ?? null,
    source: addressOf(envelope.source),
    destination: addressOf(envelope.destination),
    schema: envelope.has_schema ? envelope.schema : null,
    tags: envelope.tags,
    sealed: envelope.cipher.length > 0,
    signed: envelope.signature.length,
    plain: envelope.plain.length < 100 ? Buffer.from(envelope.plain).toString() : null,
  };
}

const sessionOf = ({ client }) => clients[client];

const commands = {
  async fresh() {
    const before = clients;
    clients = [];
    delays.delete(PING_MS);
    await Promise.all(before.map((session) => session.close()));
    return {};
  },

  async open(args) {
    const session = new Session(args);
    await session.connect();
    return { client: session.number };
  },

  async close(args) {
    await sessionOf(args).close();
    return {};
  },

  // Resolves with the answer, or rejects with the error as the package tells it.
  async call(args) {
    return { answer: await sessionOf(args).call(args) };
  },

  async callMany({ client, count, to, run }) {
    const numbers = [...Array(count).keys()];
    const call = (number) => clients[client].call({ to, run, data: JSON.stringify(number) });
    return await settle(numbers.map(async (number) => ({ answer: await call(number) })));
  },

  async requests(args) {
    return sessionOf(args).requests;
  },

  async received(args) {
    return sessionOf(args).received;
  },

  async ping(args) {
    const { client } = sessionOf(args);
    await client.read(await client.ping());
    return sessionOf(args).received.findLast(({ kind }) => kind === 'pong');
  },

  // From its next ping on; those that wait keep their time.
  async hurryPings({ ms }) {
    delays.set(PING_MS, ms);
    return {};
  },

  async waitPongs(args, timeout) {
    const { received } = sessionOf(args);
    const count = () => received.filter(({ kind }) => kind === 'pong').length;
    await until(() => count() >= args.count, timeout, () => `pongs, ${count()} so far`);
    return { pongs: count() };
  },

  async waitDisconnected(args, timeout) {
    const { client } = sessionOf(args);
    await until(() => client.con.readyState === client.con.CLOSED, timeout, () => 'the end');
    return {};
  },

  async token(args) {
    const { client } = sessionOf(args);
    return { token: client.newJWT(client.session) };
  },

  async state(args) {
    const { client, connections, updates } = sessionOf(args);
    return { connections, updates };
  },
};

serve(commands, manifestOf(NAME).version);
