// A js-ws peer driven by JSON lines; see jsonlines.mjs.
//
// The package throws internal errors at process level, which must be seen and not end the run.
//
// Streams are named by a handle of our own, because the package can have two streams of one id.

import { createHash } from 'node:crypto';
import { createRequire } from 'node:module';
import path from 'node:path';

import {
  MODULES, describe, generate, glueFramesToResponse, manifestOf, payloadOf, serve, settle, sha256,
  uncaught, until,
} from './jsonlines.mjs';

const require = createRequire(path.join(MODULES, 'package.json'));
const { WebSocketClient, WebSocketServer, events } = require('@matrixai/ws');
const { default: Logger, LogLevel } = require('@matrixai/logger');

const logger = new Logger('peer', LogLevel.SILENT);

class CodeReason extends Error {
  constructor(code) {
    super(`code ${code}`);
    this.name = 'CodeReason';
    this.code = code;
  }
}

const reasonToCode = (side, reason) => (reason instanceof CodeReason ? reason.code : 0);
const codeToReason = (side, code) => new CodeReason(code);

const state = {
  client: undefined,
  server: undefined,
  connection: undefined,
  closed: undefined, // { by, code, reason } of the first end of the connection
  handles: [],
  accepted: [], // handles of inbound streams that no accept has taken
  incoming: 'queue',
  pingsReceived: 0,
  pongsReceived: 0,
};

class Handle {
  constructor(stream, inbound) {
    this.stream = stream;
    this.inbound = inbound;
    this.phantom = inbound && (Number(stream.streamId % 2n) === 0) === (state.client !== undefined);
    this.number = state.handles.push(this) - 1;
    this.echoError = undefined;
    this.bytesSent = 0; // of all messages of the stream, heads included
    stream.addEventListener(events.EventWebSocketStreamSend.name, ({ msg }) => {
      for (const part of msg) this.bytesSent += part.length;
    });
  }

  get reader() {
    this._reader ??= this.stream.readable.getReader();
    return this._reader;
  }

  get writer() {
    this._writer ??= this.stream.writable.getWriter();
    return this._writer;
  }

  summary() {
    return {
      handle: this.number,
      id: Number(this.stream.streamId),
      inbound: this.inbound,
      phantom: this.phantom,
      readClosed: this.stream.readClosed,
      writeClosed: this.stream.writeClosed,
      queued: this.stream.readableQueue.length,
      credit: this.stream.writableDesiredSize,
      echoError: this.echoError,
    };
  }

  // Small writes are handed over without waiting, so that DATA and CLOSE leave back to back.
  async write(data, chunk) {
    const writes = [];
    for (let start = 0; start < data.length; start += chunk) {
      writes.push(this.writer.write(data.subarray(start, start + chunk)));
    }
    await Promise.all(writes);
  }

  async readAll() {
    const hash = createHash('sha256');
    let length = 0;
    try {
      for (;;) {
        const { done, value } = await this.reader.read();
        if (done) return { length, sha256: hash.digest('hex') };
        hash.update(Buffer.from(value));
        length += value.length;
      }
    } catch (error) {
      if (error instanceof Error) error.received = length;
      throw error;
    }
  }

  async echo() {
    try {
      for (;;) {
        const { done, value } = await this.reader.read();
        if (done) break;
        if (value.length > 0) await this.writer.write(value);
      }
      await this.writer.close();
    } catch (error) {
      this.echoError = describe(error);
    }
  }
}

function handleOf({ stream }) {
  const handle = state.handles[stream];
  if (handle === undefined) throw new Error(`no stream with handle ${stream}`);
  return handle;
}

function adopt(connection) {
  state.connection = connection;
  connection.addEventListener(events.EventWebSocketConnectionStream.name, (event) => {
    const handle = new Handle(event.detail, true);
    if (handle.phantom) return;
    if (state.incoming === 'echo') handle.echo();
    else state.accepted.push(handle);
  });
  connection.addEventListener(events.EventWebSocketConnectionError.name, (event) => {
    const { name, data } = event.detail;
    state.closed ??= {
      by: name.endsWith('Peer') ? 'peer' : 'local',
      error: name,
      code: data?.errorCode,
      reason: data?.reason,
    };
  });
  connection.socket.on('ping', () => state.pingsReceived++);
  connection.socket.on('pong', () => state.pongsReceived++);
}

function liveConnection() {
  if (state.connection === undefined) throw new Error('there is no connection');
  return state.connection;
}

async function openAndSend({ seed, size, chunk }) {
  const handle = new Handle(await liveConnection().newStream(), false);
  await handle.write(generate(seed, size), chunk);
  await handle.writer.close();
  return handle;
}

async function sendMany({ count, seed, size, chunk }) {
  const indices = [...Array(count).keys()];
  const sent = indices.map((index) => openAndSend({ seed: `${seed}-${index}`, size, chunk }));
  return await Promise.all(sent);
}

const commands = {
  async listen({ key, cert, host, config, openOnConnect, glued }) {
    const server = new WebSocketServer({
      config: { key, cert, ...config },
      reasonToCode,
      codeToReason,
      logger,
    });
    state.server = server;
    server.addEventListener(events.EventWebSocketServerConnection.name, async (event) => {
      adopt(event.detail);
      if (openOnConnect !== undefined) await sendMany(openOnConnect);
    });
    await server.start({ host, port: 0 });
    if (glued) glueFramesToResponse(server.server);
    return { port: server.port };
  },

  async connect({ host, port, ca, config }, timeout) {
    state.client = await WebSocketClient.createWebSocketClient(
      { host, port, config: { ca, ...config }, reasonToCode, codeToReason, logger },
      { timer: timeout },
    );
    adopt(state.client.connection);
    return {};
  },

  async connected(_, timeout) {
    await until(() => state.connection !== undefined, timeout, () => 'a connection');
    return {};
  },

  async incoming({ mode }) {
    state.incoming = mode;
    return {};
  },

  async open() {
    return new Handle(await liveConnection().newStream(), false).summary();
  },

  async openAndCancel({ code }) {
    const stream = await liveConnection().newStream();
    const handle = new Handle(stream, false);
    stream.cancel(new CodeReason(code));
    return handle.summary();
  },

  async accept(_, timeout) {
    await until(() => state.accepted.length > 0, timeout, () => 'an inbound stream');
    return state.accepted.shift().summary();
  },

  async write(args) {
    const data = payloadOf(args);
    await handleOf(args).write(data, args.chunk ?? Math.max(data.length, 1));
    return { length: data.length, sha256: sha256(data) };
  },

  async close(args) {
    await handleOf(args).writer.close();
    return {};
  },

  async abort(args) {
    await handleOf(args).writer.abort(new CodeReason(args.code));
    return {};
  },

  async cancel(args) {
    await handleOf(args).reader.cancel(new CodeReason(args.code));
    return {};
  },

  async cancelBoth(args) {
    handleOf(args).stream.cancel(new CodeReason(args.code));
    return {};
  },

  async readAll(args) {
    return await handleOf(args).readAll();
  },

  async read(args) {
    const { done, value } = await handleOf(args).reader.read();
    if (done) return { done, length: 0 };
    const data = Buffer.from(value);
    return { done, length: data.length, hex: data.subarray(0, 4096).toString('hex') };
  },

  // Rejects with the reason for which the writing half ended, resolves if it ended well.
  async writerClosed(args) {
    await handleOf(args).writer.closed;
    return {};
  },

  async sendMany(args) {
    const handles = await sendMany(args);
    return { handles: handles.map((handle) => handle.number) };
  },

  async exchangeMany({ count, seed, size, chunk }) {
    const indices = [...Array(count).keys()];
    const exchanges = indices.map(async (index) => {
      const handle = new Handle(await liveConnection().newStream(), false);
      const answer = handle.readAll();
      answer.catch(() => {});
      await handle.write(generate(`${seed}-${index}`, size), chunk);
      await handle.writer.close();
      return await answer;
    });
    return await settle(exchanges);
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
    await until(
      () => state.accepted.length >= count,
      timeout,
      () => `${count} inbound streams, ${state.accepted.length} arrived`,
    );
    const taken = state.accepted.splice(0, count);
    return await settle(taken.map((handle) => handle.readAll()));
  },

  async waitQueued(args, timeout) {
    const { stream } = handleOf(args);
    const size = () => stream.readableQueue.length;
    await until(() => size() >= args.atLeast, timeout, () => `queued bytes, ${size()} so far`);
    return { queued: size() };
  },

  async waitReadClosed(args, timeout) {
    const { stream } = handleOf(args);
    await until(() => stream.readClosed, timeout, () => 'the end of the readable half');
    return {};
  },

  // Credit is 0 before the peer's first ACK, too; `sent` tells the two apart.
  async waitNoCredit(args, timeout) {
    const handle = handleOf(args);
    const credit = () => handle.stream.writableDesiredSize;
    await until(
      () => credit() === 0 && handle.bytesSent >= args.sent,
      timeout,
      () => `credit 0, it is ${credit()} after ${handle.bytesSent} bytes`,
    );
    return {};
  },

  async waitPings({ received, answered }, timeout) {
    const enough = () =>
      state.pingsReceived >= (received ?? 0) && state.pongsReceived >= (answered ?? 0);
    const counts = () => ({ received: state.pingsReceived, answered: state.pongsReceived });
    await until(enough, timeout, () => `pings, so far ${JSON.stringify(counts())}`);
    return counts();
  },

  async pauseSocket() {
    liveConnection().socket.pause();
    return {};
  },

  async resumeSocket() {
    liveConnection().socket.resume();
    return {};
  },

  async waitClosed(_, timeout) {
    await until(() => state.closed !== undefined, timeout, () => 'the end of the connection');
    await liveConnection().closedP;
    return state.closed;
  },

  async stop({ code, reason }) {
    await liveConnection().stop({ errorCode: code, reason });
    return {};
  },

  async report() {
    const streams = state.handles.map((handle) => handle.summary());
    return {
      streams,
      inbound: streams.filter(({ inbound, phantom }) => inbound && !phantom).length,
      phantoms: streams.filter(({ phantom }) => phantom).length,
      live: liveConnection().streamMap.size,
      extensions: liveConnection().socket.extensions,
      closed: state.closed,
      uncaught,
    };
  },
};

serve(commands, manifestOf('@matrixai/ws').version);
