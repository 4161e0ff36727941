// A peer that runs npm `@libp2p/yamux` on a bare TCP or WebSocket connection; see jsonlines.mjs.
//
// In libp2p the muxer sits on an encrypted connection. Here it gets the bytes as they are; what it
// sends in one piece is one write, or one binary message. It tells its logger of every frame, and
// that is where the ledgers of what was sent and received come from.

import { createHash } from 'node:crypto';
import { createServer, connect as connectSocket } from 'node:net';

import {
  describe, generate, glueFramesToResponse, load, manifestOf, payloadOf, serve, settle, sha256,
  uncaught, until,
} from './jsonlines.mjs';

// Node 20 does not have it yet, and without it the package cannot ping.
Promise.withResolvers ??= function withResolvers() {
  const parts = {};
  parts.promise = new this((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};

const { yamux } = await load('@libp2p/yamux');
const { AbstractMultiaddrConnection } = await load('@libp2p/utils');
const { WebSocket, WebSocketServer } = await load('ws');

const SUBPROTOCOL = 'yamux';
const MAX_MESSAGE = 32 * 1024 * 1024;
const HIGH_WATER = 64 * 1024; // bytes that a WebSocket may hold back before writers pause

const TYPES = { Data: 'data', WindowUpdate: 'window', Ping: 'ping', GoAway: 'goaway' };

function newSession() {
  return {
    config: {},
    server: undefined,
    carrier: undefined,
    muxer: undefined,
    subprotocol: undefined,
    handles: [],
    accepted: [], // handles of inbound streams that no accept has taken
    incoming: 'queue',
    received: newLedger(),
    sent: newLedger(),
  };
}

function newLedger() {
  return { frames: [], dataFrames: 0, dataBytes: 0, largest: 0 };
}

let session = newSession();

function logOf({ received, sent }) {
  const ledgers = { 'received frame %o': received, 'sending frame %o': sent };
  const log = () => {};
  log.error = () => {};
  log.enabled = true;
  log.newScope = () => log;
  log.trace = (text, frame) => {
    if (ledgers[text] !== undefined) enter(ledgers[text], frame);
  };
  return log;
}

function enter(ledger, { type, flags, streamID: stream, length }) {
  if (type === 'Data') {
    ledger.dataFrames++;
    ledger.dataBytes += length;
    ledger.largest = Math.max(ledger.largest, length);
  }
  if (type !== 'Data' || flags.length > 0) {
    ledger.frames.push({ type: TYPES[type], flags, stream, length });
  }
}

class TcpCarrier extends AbstractMultiaddrConnection {
  constructor(socket, direction, log) {
    super({ log, direction });
    this.socket = socket;
    socket.setNoDelay(true);
    socket.on('data', (data) => this.onData(data));
    socket.on('drain', () => this.safeDispatchEvent('drain'));
    socket.on('error', () => {});
    socket.on('close', () => this.onTransportClosed());
  }

  sendData(data) {
    const canSendMore = this.socket.write(data.subarray());
    return { sentBytes: data.byteLength, canSendMore };
  }

  async sendClose() {
    this.socket.end();
  }

  // Not at once: what the muxer has said before must still arrive.
  sendReset() {
    this.socket.destroySoon();
  }

  destroy() {
    this.socket.destroy();
  }

  sendPause() {}

  sendResume() {}
}

class WebSocketCarrier extends AbstractMultiaddrConnection {
  constructor(socket, direction, log) {
    super({ log, direction });
    this.socket = socket;
    socket.on('message', (data) => this.onData(data));
    socket.on('error', () => {});
    socket.on('close', () => this.onTransportClosed());
  }

  sendData(data) {
    this.socket.send(data.subarray(), () => {
      if (this.socket.bufferedAmount <= HIGH_WATER) this.safeDispatchEvent('drain');
    });
    return {
      sentBytes: data.byteLength,
      canSendMore: this.socket.bufferedAmount <= HIGH_WATER,
    };
  }

  async sendClose() {
    this.socket.close(1000);
  }

  sendReset() {
    this.socket.close(1011);
  }

  destroy() {
    this.socket.terminate();
  }

  sendPause() {}

  sendResume() {}
}

class Handle {
  constructor(owner, stream, inbound) {
    this.stream = stream;
    this.inbound = inbound;
    this.number = owner.handles.push(this) - 1;
    this.chunks = [];
    this.held = 0;
    this.finished = false; // FIN came
    this.closed = undefined; // the event that told of the end of both halves
    this.echoError = undefined;
    this.waiting = false;
    this.wake = () => {};
    stream.addEventListener('message', ({ data }) => {
      this.chunks.push(data.subarray());
      this.held += data.byteLength;
      this.wake();
    });
    stream.addEventListener('remoteCloseWrite', () => {
      this.finished = true;
      this.wake();
    });
    stream.addEventListener('close', (event) => {
      this.closed = event;
      this.wake();
    });
  }

  summary() {
    return {
      handle: this.number,
      id: this.stream.streamId,
      inbound: this.inbound,
      status: this.stream.status,
      echoError: this.echoError,
    };
  }

  // Returns undefined at the end of the stream, and where the package tells of no error.
  async next() {
    for (;;) {
      const chunk = this.chunks.shift();
      if (chunk !== undefined) {
        this.held -= chunk.length;
        return chunk;
      }
      if (this.finished) return undefined;
      if (this.closed?.error !== undefined) throw this.closed.error;
      if (this.closed !== undefined) return undefined;
      this.waiting = true;
      await new Promise((resolve) => {
        this.wake = resolve;
      });
      this.waiting = false;
    }
  }

  // Waits for an event, not for onDrain(): that one resolves at once after its first time.
  async write(data, chunk) {
    for (let start = 0; start < data.length; start += chunk) {
      this.stream.send(data.subarray(start, start + chunk));
    }
    await this.emptied();
  }

  async emptied() {
    if (this.stream.writeBufferLength > 0) {
      await new Promise((resolve) => {
        for (const kind of ['idle', 'close']) {
          this.stream.addEventListener(kind, resolve, { once: true });
        }
      });
    }
    if (this.closed !== undefined) throw this.closed.error ?? new Error('the stream was closed');
  }

  async readAll() {
    if (this.stream.readStatus === 'paused') this.stream.resume();
    const hash = createHash('sha256');
    let length = 0;
    try {
      for (;;) {
        const chunk = await this.next();
        if (chunk === undefined) break;
        hash.update(chunk);
        length += chunk.length;
      }
    } catch (error) {
      if (error instanceof Error) error.received = length;
      throw error;
    }
    return { length, sha256: hash.digest('hex'), end: this.finished ? 'fin' : 'closed' };
  }

  async echo() {
    try {
      for (;;) {
        const chunk = await this.next();
        if (chunk === undefined) break;
        await this.write(chunk, chunk.length);
      }
      await this.stream.close();
    } catch (error) {
      this.echoError = describe(error);
    }
  }
}

function handleOf({ stream }) {
  const handle = session.handles[stream];
  if (handle === undefined) throw new Error(`no stream with handle ${stream}`);
  return handle;
}

function adopt(owner, socket, Carrier, direction) {
  owner.carrier = new Carrier(socket, direction, logOf(owner));
  owner.muxer = yamux(owner.config)().createStreamMuxer(owner.carrier);
  owner.muxer.addEventListener('stream', ({ detail }) => {
    const handle = new Handle(owner, detail, true);
    if (owner.incoming === 'echo') handle.echo();
    else owner.accepted.push(handle);
  });
  if (owner.openOnConnect !== undefined) sendMany(owner.openOnConnect);
}

function muxer() {
  if (session.muxer === undefined) throw new Error('there is no connection');
  return session.muxer;
}

async function open() {
  return new Handle(session, await muxer().createStream(), false);
}

async function openAndSend({ seed, size, chunk }) {
  const handle = await open();
  await handle.write(generate(seed, size), chunk);
  await handle.stream.close();
  return handle;
}

async function sendMany({ count, seed, size, chunk }) {
  const indices = [...Array(count).keys()];
  await Promise.all(
    indices.map((index) => openAndSend({ seed: `${seed}-${index}`, size, chunk })),
  );
}

const listeners = {
  async tcp(owner, host) {
    owner.server = createServer((socket) => adopt(owner, socket, TcpCarrier, 'inbound'));
    await new Promise((resolve) => owner.server.listen(0, host, resolve));
  },

  async ws(owner, host, subprotocol) {
    owner.server = new WebSocketServer({
      host,
      port: 0,
      maxPayload: MAX_MESSAGE,
      perMessageDeflate: false,
      handleProtocols: (offered) => offered.has(subprotocol) && subprotocol,
    });
    owner.server.on('connection', (socket) => {
      owner.subprotocol = socket.protocol;
      adopt(owner, socket, WebSocketCarrier, 'inbound');
    });
    await new Promise((resolve) => owner.server.once('listening', resolve));
  },
};

const connectors = {
  async tcp(owner, host, port) {
    const socket = connectSocket(port, host);
    await new Promise((resolve, reject) => {
      socket.once('connect', resolve);
      socket.once('error', reject);
    });
    adopt(owner, socket, TcpCarrier, 'outbound');
  },

  // Adopts in the event itself: the first message may be right behind the response.
  async ws(owner, host, port, subprotocol) {
    const socket = new WebSocket(`ws://${host}:${port}/`, subprotocol ?? [], {
      maxPayload: MAX_MESSAGE,
      perMessageDeflate: false,
    });
    await new Promise((resolve, reject) => {
      socket.once('error', reject);
      socket.once('open', () => {
        owner.subprotocol = socket.protocol;
        adopt(owner, socket, WebSocketCarrier, 'outbound');
        resolve();
      });
    });
  },
};

const commands = {
  // Forgets everything, so that one process serves many tests.
  async fresh() {
    session.carrier?.destroy();
    session.server?.close();
    session = newSession();
    uncaught.length = 0;
    return {};
  },

  // A subprotocol of null is none.
  async listen({ carrier, host, config, openOnConnect, glued, subprotocol = SUBPROTOCOL }) {
    session.config = config;
    session.openOnConnect = openOnConnect;
    await listeners[carrier](session, host, subprotocol);
    if (glued) glueFramesToResponse(session.server._server);
    return { port: session.server.address().port };
  },

  async connect({ carrier, host, port, config, subprotocol = SUBPROTOCOL }) {
    session.config = config;
    await connectors[carrier](session, host, port, subprotocol);
    return {};
  },

  async connected(_, timeout) {
    await until(() => session.muxer !== undefined, timeout, () => 'a connection');
    return {};
  },

  async incoming({ mode }) {
    session.incoming = mode;
    return {};
  },

  async open() {
    return (await open()).summary();
  },

  async accept(_, timeout) {
    const { accepted } = session;
    await until(() => accepted.length > 0, timeout, () => 'an inbound stream');
    return accepted.shift().summary();
  },

  async write(args) {
    const data = payloadOf(args);
    await handleOf(args).write(data, args.chunk ?? Math.max(data.length, 1));
    return { length: data.length, sha256: sha256(data) };
  },

  async close(args) {
    await handleOf(args).stream.close();
    return {};
  },

  async reset(args) {
    handleOf(args).stream.abort(new Error('reset on command'));
    return {};
  },

  async read(args) {
    const chunk = await handleOf(args).next();
    if (chunk === undefined) return { done: true, length: 0 };
    return { done: false, length: chunk.length };
  },

  async readAll(args) {
    return await handleOf(args).readAll();
  },

  async waitReading(args, timeout) {
    const handle = handleOf(args);
    await until(() => handle.waiting, timeout, () => 'somebody who waits for bytes');
    return {};
  },

  // Credit returns although nobody reads, unless the stream is paused.
  async stall(args) {
    handleOf(args).stream.pause();
    return {};
  },

  async sendMany(args) {
    await sendMany(args);
    return {};
  },

  async exchangeMany({ count, seed, size, chunk }) {
    const indices = [...Array(count).keys()];
    return await settle(
      indices.map(async (index) => {
        const handle = await openAndSend({ seed: `${seed}-${index}`, size, chunk });
        return await handle.readAll();
      }),
    );
  },

  async exchangeInSequence({ count, size, seed }) {
    const answers = [];
    for (let index = 0; index < count; index++) {
      const handle = await openAndSend({ seed: `${seed}-${index}`, size, chunk: size });
      answers.push(await handle.readAll());
    }
    return answers;
  },

  // Reads on `count` inbound streams to their ends, in the order in which they arrived.
  async readMany({ count }, timeout) {
    const { accepted } = session;
    await until(
      () => accepted.length >= count,
      timeout,
      () => `${count} inbound streams, ${accepted.length} arrived`,
    );
    return await settle(accepted.splice(0, count).map((handle) => handle.readAll()));
  },

  async ping() {
    return { milliseconds: await muxer().ping() };
  },

  // With an error the muxer does not wait for its streams; `reason` is where it takes the code from.
  async goAway({ code, graceful = true }) {
    const { carrier } = session;
    if (graceful) {
      await muxer().close({ reason: code });
      await carrier.close();
    } else {
      const error = Object.assign(new Error('gone on command'), { reason: code });
      muxer().abort(error);
      carrier.abort(error);
    }
    return {};
  },

  // The carrier is closed in good order, without a word in Yamux.
  async hangUp() {
    await session.carrier.close();
    return {};
  },

  // Waits until so many bytes of data frames went one way.
  async waitData({ way, atLeast }, timeout) {
    const ledger = session[way];
    const seen = () => `${atLeast} bytes ${way}, so far ${ledger.dataBytes}`;
    await until(() => ledger.dataBytes >= atLeast, timeout, seen);
    return { dataBytes: ledger.dataBytes };
  },

  async waitFrames({ way, type, flag, count }, timeout) {
    const { frames } = session[way];
    const found = () =>
      frames.filter((frame) => frame.type === type && (!flag || frame.flags.includes(flag)));
    const seen = () => `${count} ${type} frames ${way}, so far ${found().length}`;
    await until(() => found().length >= count, timeout, seen);
    return { frames: found() };
  },

  async waitClosed(_, timeout) {
    await until(() => muxer().status === 'closed', timeout, () => 'the end of the connection');
    return {};
  },

  async report() {
    return {
      streams: session.handles.map((handle) => handle.summary()),
      live: muxer().streams.length,
      status: muxer().status,
      subprotocol: session.subprotocol,
      received: session.received,
      sent: session.sent,
    };
  },
};

serve(commands, manifestOf('@libp2p/yamux').version);
