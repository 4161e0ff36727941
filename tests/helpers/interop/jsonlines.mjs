// What the Node peers have in common: commands as JSON lines on stdin, answers on stdout.
//
// Command {"id", "cmd", "timeout" (ms), ...arguments}; answer {"id", "ok": true, "result"} or
// {"id", "ok": false, "error"}. A line with "event" instead of "id" is news nobody asked for: an
// error at process level must be seen and not end the run.
//
// INTEROP_MODULES is the directory that holds node_modules.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

export const MODULES = process.env.INTEROP_MODULES;
export const uncaught = [];

const POLL_MS = 5;
const DEFAULT_TIMEOUT_MS = 10_000;

function emit(message) {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

export function describe(error) {
  if (!(error instanceof Error)) return { name: typeof error, message: String(error) };
  const described = { name: error.name, message: error.message };
  if (error.code !== undefined) described.code = error.code;
  if (error.data !== undefined) described.data = error.data;
  if (error.received !== undefined) described.received = error.received;
  const cause = error.cause ?? (error.detail instanceof Error ? error.detail : undefined);
  if (cause !== undefined) described.cause = describe(cause);
  return described;
}

export async function until(condition, timeout, what) {
  const deadline = Date.now() + timeout;
  while (!condition()) {
    if (Date.now() >= deadline) throw new Error(`gave up waiting for ${what()}`);
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
  }
}

// The same bytes as hashlib.shake_256(seed).digest(size).
export function generate(seed, size) {
  if (size === 0) return Buffer.alloc(0);
  return createHash('shake256', { outputLength: size }).update(seed).digest();
}

export function payloadOf({ hex, seed, size }) {
  return hex === undefined ? generate(seed, size) : Buffer.from(hex, 'hex');
}

export const sha256 = (data) => createHash('sha256').update(data).digest('hex');

export async function settle(promises) {
  const settled = await Promise.allSettled(promises);
  return settled.map(({ value, reason }) => value ?? { error: describe(reason) });
}

export function manifestOf(name) {
  return JSON.parse(readFileSync(path.join(MODULES, 'node_modules', name, 'package.json')));
}

// Imports an installed package that has no CommonJS form, which createRequire cannot load.
export async function load(name) {
  const { exports } = manifestOf(name);
  const file = path.join(MODULES, 'node_modules', name, (exports['.'] ?? exports).import);
  return await import(pathToFileURL(file));
}

// Keeps the 101 response and the first frames in one write to the TCP socket.
export function glueFramesToResponse(httpServer) {
  httpServer.prependListener('upgrade', (request, socket) => {
    socket.cork();
    setImmediate(() => setImmediate(() => socket.uncork()));
  });
}

const harnessCommands = {
  async waitUncaught(_, timeout) {
    await until(() => uncaught.length > 0, timeout, () => 'an uncaught exception');
    return uncaught[0];
  },

  async throwLater({ message }) {
    setImmediate(() => {
      throw new Error(message);
    });
    return {};
  },

  async never() {
    return await new Promise(() => {});
  },

  async exit() {
    setImmediate(() => process.exit(0));
    return {};
  },
};

// Answers commands until stdin ends; `version` is told to the driver first.
export function serve(peerCommands, version) {
  const commands = { ...harnessCommands, ...peerCommands };

  async function run(request) {
    const { id, cmd, timeout = DEFAULT_TIMEOUT_MS, ...args } = request;
    let timer;
    try {
      const command = commands[cmd];
      if (command === undefined) throw new Error(`no command ${cmd}`);
      const late = new Promise((_, reject) => {
        timer = setTimeout(() => {
          const error = new Error(`${cmd} took longer than ${timeout} ms`);
          error.name = 'Timeout';
          reject(error);
        }, timeout + 4 * POLL_MS);
      });
      emit({ id, ok: true, result: await Promise.race([command(args, timeout), late]) });
    } catch (error) {
      emit({ id, ok: false, error: describe(error) });
    } finally {
      clearTimeout(timer);
    }
  }

  for (const kind of ['uncaughtException', 'unhandledRejection']) {
    process.on(kind, (error) => {
      uncaught.push(describe(error));
      emit({ event: 'uncaught', kind, error: describe(error) });
    });
  }
  const lines = createInterface({ input: process.stdin });
  lines.on('line', (line) => run(JSON.parse(line)));
  lines.on('close', () => process.exit(0));
  emit({ event: 'ready', version });
}
