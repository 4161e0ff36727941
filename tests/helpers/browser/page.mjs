// A page without a browser: the module in Node, on a WebSocket whose other end is the test.
//
// Commands come as lines of JSON, and each is answered before the next is read:
//
//     {"run": "body of an async function"}     {"take": "a message of the server's, in hex"}
//
// An answer has `result`, or `thrown`, also where the function waits for what only a further command
// can bring; the messages that the page has `sent` by then, in hex; and
// how it has `closed`. Nothing is left to do then: time passes only by `elapse(milliseconds)`.

import { createInterface } from "node:readline";

const TURNS = 50;  // many more than anything here takes

let sent = [], closed = null;

globalThis.carriers = 0;  // WebSockets made so far; the last of them is `socket`
globalThis.WebSocket = class {
  static OPEN = 1;
  readyState = 1;
  bufferedAmount = 0;

  constructor(target, [protocol]) {
    globalThis.socket = this;
    globalThis.carriers += 1;
    this.protocol = protocol;
    closed = null;
    sent = [];
  }

  send(message) { sent.push(Buffer.from(message).toString("hex")); }

  close(code, reason) {
    if (Buffer.byteLength(reason ?? "") > 123) throw new DOMException("a long reason", "SyntaxError");
    closed = [code, reason];
  }
};

const timers = new Map();
let now = 0, number = 0, chain = 0;

globalThis.setTimeout = (call, delay) => {
  timers.set(++number, { call, due: now + delay, chain: chain + 1 });
  return number;
};
globalThis.clearTimeout = (timer) => timers.delete(timer);
performance.now = () => now;
globalThis.elapse = (milliseconds) => {
  now += milliseconds;
  for (const [timer, { call, due, chain: before }] of timers) {
    if (due > now || !timers.delete(timer)) continue;
    chain = before;
    call();
    chain = 0;
  }
};
// For each timer, how many have set one another up to it: five, and browsers delay it in a hidden page.
globalThis.chains = () => Array.from(timers.values(), (timer) => timer.chain);

globalThis.encode = (text) => new TextEncoder().encode(text);
Object.assign(globalThis, await import(process.argv[2]));

const AsyncFunction = (async () => {}).constructor;

async function obey({ run, take }) {
  if (run !== undefined) return new AsyncFunction(run)();
  const bytes = Uint8Array.from(Buffer.from(take, "hex"));
  return void globalThis.socket.onmessage({ data: bytes.buffer });
}

for await (const line of createInterface({ input: process.stdin })) {
  let answer = null;
  obey(JSON.parse(line)).then(
    (result) => { answer = { result }; },
    (error) => { answer = { thrown: String(error.stack ?? error) }; },
  );
  // Each turn is behind every promise that is settled by then, and each second one behind the messages of channels.
  for (let turn = 0; turn < TURNS && (turn < 2 || !answer); turn++) {
    await new Promise((done) => setImmediate(done));
  }
  answer ??= { thrown: "it waits, and nothing is under way" };
  console.log(JSON.stringify({ ...answer, sent: sent.splice(0), closed }));
}
process.exit();
