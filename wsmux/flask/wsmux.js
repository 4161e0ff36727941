/**
 * Many streams over one WebSocket, for a page of a Flask application that has a `Mux` route.
 *
 *     import { Wsmux } from "/wsmux.js";
 *
 *     const mux = new Wsmux("/files");
 *     const stream = await mux.createBidirectionalStream();
 *     const writer = stream.writable.getWriter();
 *     await writer.write(new TextEncoder().encode("hello"));
 *     await writer.close();
 *     console.log(await new Response(stream.readable).text());
 *
 * The names and the behaviour are those of the browser's `WebTransport` and its bidirectional
 * streams, so code written for one runs on the other. The differences: a stream has an `id`; stream
 * codes are those of the wire, so applications use 0 and 64 upwards; the closing code is one of a
 * WebSocket, 1000 or 3000 to 4999; there are no datagrams.
 *
 * The wire is `wsmux.v1`, and this side is always the client:
 *
 *     varint id | type | body      0 DATA     bytes
 *                                  1 ACK      uint32: bytes of credit
 *                                  2 ERROR    direction, varint code
 *                                  3 CLOSE    direction
 *                                  4 GO_AWAY  varint code; the id is the first one not processed
 *
 * The direction is from the receiver's point of view: 0 "your readable end", 1 "your writable end".
 *
 * Early bytes, sent on a stream before the ACK that answers it, follow the same rule as on the
 * server (`EarlyBytes` there):
 *
 * - Each end makes one promise for the whole connection: on a stream that the peer opens, it takes
 *   its receive window, but at most 16 KiB, before it answers, however late that is. On a stream
 *   that it refuses, or ignores after its own GO_AWAY, it drops as much.
 * - The first window that an end announces conveys the promise, which holds from then on: all its
 *   windows are at least 16 KiB, or all of one size; here all are `receiveWindow`.
 * - So the opener of a stream may send as much as the smallest window announced to it so far, at
 *   most 16 KiB, before the answer. Until the first one, it waits.
 * - These bytes are part of the window that the answer announces. It is never exceeded.
 *
 * A stream of the server is answered when the page takes it from `incomingBidirectionalStreams`.
 * Data received by then is kept, even if the server has ended the stream since.
 *
 * With `resume: true` the connection outlives its WebSocket: it goes on over another one after the
 * page slept, changed its network, or a proxy cut it, as long as the server's process lives. The
 * server must allow it (`Mux(app, resume=True)`), and the page must be a secure context (https or
 * localhost), for the HMAC that signs each return; otherwise the connection is an ordinary one. Each
 * message then begins with its type, one byte (`wsmux/protocols/resumption.py` describes them).
 *
 * Differences from `wsmux` in Python: windows do not grow (`receiveWindow` sets them); cheap frames
 * are not limited, since nothing is stored for frames that change nothing; data on a stream that is
 * no longer read is dropped, not counted; a browser does not let a page close with a code below
 * 3000, so a protocol error closes with 4002 instead of 1002.
 */

const DATA = 0, ACK = 1, ERROR = 2, CLOSE = 3, GO_AWAY = 4;
const READ = 0, WRITE = 1;

const SUBPROTOCOL = "wsmux.v1";
const OVERFLOW = 2, REFUSED = 3, FIRST_APPLICATION_CODE = 64;
const PROTOCOL_ERROR = 4002;

const MAX_VARINT = 2n ** 62n;
const MAX_UINT32 = 2 ** 32 - 1;
const MAX_INT32 = 2 ** 31 - 1;
const MAX_REASON = 100;       // of the 123 bytes of a close frame; reasons are ASCII
const MAX_FRAME = 64 * 1024;  // bytes of one stream per turn
const MAX_EARLY = 16 * 1024;  // maximum bytes before the answer of the other side
const MAX_PENDING = 256;      // maximum streams opened here and not yet answered
const JOINED = 512;           // bytes up to which unread chunks are joined, as each costs several hundred by itself

// Bytes in the browser's own queue beyond which writers wait, since queued bytes cannot be
// overtaken. The browser does not report when it has room, so it is polled every few milliseconds,
// and whenever the server has sent something, as a browser delays the timers of a hidden page.
const MAX_BUFFERED = 1024 * 1024;
const LOOK_AGAIN = 4;

// A resumable connection: the messages of its WebSockets, what is kept for the server, and when what
// came is acknowledged; times are milliseconds.
const RESUMABLE = "wsmux.resume.v1+wsmux";
const CARRIED = 0, HELLO = 1, WELCOME = 2, LOST = 3, REFUSAL = 4, ACKNOWLEDGED = 5, END = 6;
const VERSION = 1, HELLO_SIZE = 51, KEY_SIZE = 32, ACKNOWLEDGED_SIZE = 9, LEAST_END = 3;
const MAX_KEPT = 4 * 1024 * 1024;
const MOST_KEPT = 2 * MAX_KEPT;  // which only answers reach, as data waits before
const LEAST_KEPT = 64;        // bytes as which a kept message counts at least, as keeping one costs several hundred
const ACKNOWLEDGE_BESIDE = 32 * 1024, ACKNOWLEDGE_WITHIN = 1000;
const FIRST_PAUSE = 50, LONGEST_PAUSE = 2000, ATTEMPT = 10_000;
const STANDS = 10_000;        // or the grace: by then a carrier works; what a message ends, it ends much sooner
const GOING_AWAY = 1001, ABNORMAL = 1006;
const LONGEST_REASON = 123;   // bytes of UTF-8 in a close frame

/** An error of one stream (`source` is "stream") or of all of them ("session"). */
export class WsmuxError extends Error {
  /**
   * @param {string} message what happened.
   * @param {{source?: string, streamErrorCode?: number | bigint | null}} [options] the code is sent
   *   to the peer if the error is the reason of `abort()` or `cancel()`: 0, or 64 and upwards.
   */
  constructor(message, { source = "stream", streamErrorCode = null } = {}) {
    super(message);
    this.name = "WsmuxError";
    this.source = source;
    this.streamErrorCode = streamErrorCode;
  }
}

// A protocol violation by the server, which gets the message.
class ProtocolError extends Error {}

function encodeVarint(value) {
  const number = BigInt(value);
  if (number < 64n) return new Uint8Array([Number(number)]);
  const view = new DataView(new ArrayBuffer(8));
  if (number < 1n << 14n) view.setUint16(0, 0x4000 | Number(number));
  else if (number < 1n << 30n) view.setUint32(0, 0x80000000 + Number(number));
  else view.setBigUint64(0, (3n << 62n) | number);
  return new Uint8Array(view.buffer, 0, number < 1n << 14n ? 2 : number < 1n << 30n ? 4 : 8);
}

/** Return a number, or a BigInt if it is too large for one, and the position after it. */
function decodeVarint(view, offset) {
  if (offset >= view.byteLength) return null;
  const size = 1 << (view.getUint8(offset) >> 6), end = offset + size;
  if (end > view.byteLength) return null;
  if (size === 1) return [view.getUint8(offset), end];
  if (size === 2) return [view.getUint16(offset) & 0x3fff, end];
  if (size === 4) return [view.getUint32(offset) % 2 ** 30, end];
  const value = view.getBigUint64(offset) & ((1n << 62n) - 1n);
  return [value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value, end];
}

function directionOf(kind, id, view, offset) {
  if (offset >= view.byteLength) throw new ProtocolError(`${kind} on stream ${id} without a direction`);
  const direction = view.getUint8(offset);
  if (direction > WRITE) throw new ProtocolError(`${kind} on stream ${id} with the direction ${direction}`);
  return direction;
}

function checkEnd(kind, id, view, end) {
  if (end !== view.byteLength) throw new ProtocolError(`${kind} on stream ${id} has a body of the wrong length`);
}

/** The code for a reason of abort() or cancel(), which must not be reserved for the wire. */
function codeOf(reason) {
  const code = reason instanceof WsmuxError ? reason.streamErrorCode : 0;
  const whole = typeof code === "bigint" || Number.isSafeInteger(code);
  return whole && code >= FIRST_APPLICATION_CODE && code < MAX_VARINT ? code : 0;
}

function bytesOf(chunk) {
  if (chunk instanceof ArrayBuffer) return new Uint8Array(chunk);
  if (ArrayBuffer.isView(chunk)) return new Uint8Array(chunk.buffer, chunk.byteOffset, chunk.byteLength);
  throw new TypeError(
    "a stream takes bytes, in an ArrayBuffer or a view of one; new TextEncoder().encode() makes them of text",
  );
}

/**
 * Call later, after `delay` milliseconds, and not as a timer that another has set: browsers run such
 * chains once a minute in a hidden page, and other timers once a second. Return the timer; the call
 * may be under way when that is cleared.
 */
function unchained(call, delay) {
  return setTimeout(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => { port1.close(); call(); };
    port2.postMessage(null);
  }, delay);
}

/** A promise with its two functions; an unhandled rejection is not reported. */
class Deferred {
  constructor() {
    this.promise = new Promise((resolve, reject) => Object.assign(this, { resolve, reject }));
    this.promise.catch(() => {});
  }
}

function concatenate(parts) {
  const all = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    all.set(part, offset);
    offset += part.length;
  }
  return all;
}

/** The type of a message of a resumable connection; null if it is a text, or empty. */
function kindOf(data) {
  return data instanceof ArrayBuffer && data.byteLength ? new DataView(data).getUint8(0) : null;
}

/** The close event of a carrier that this side has failed, or gives up. */
function failed(error) {
  return { code: ABNORMAL, reason: String(error), wasClean: false };
}

/** The code and the reason of a close event, as text. */
function describe({ code, reason }) {
  return reason ? `${code}, ${reason}` : `${code}`;
}

/** What `Wsmux` needs of a WebSocket, over one after another; a lost session is a close with 1006. */
class ResumableSocket {
  #target;
  #socket = null;      // the present carrier, or the one being tried
  #attached = false;
  #plain = false;      // the server does not resume connections
  #over = false;
  #lostAt = null;      // since when nothing has got through
  #lostBy = null;      // how the last attached carrier ended
  #pauses = 0;         // attempts since something did
  #cuts = 0;           // carriers lost since something did, over which something was sent again
  #attachedAt = 0;
  #timer = null;       // of the next attempt, or of the end of this one
  #ackTimer = null;
  #id = crypto.getRandomValues(new Uint8Array(16));
  #epoch = new Uint8Array(8);
  #key = null;
  #grace = 0;
  #ackAfter = 64 * 1024;
  #generation = 0;
  #sent = 0;
  #acknowledged = 0;
  #received = 0;
  #told = 0;
  #kept = [];          // [position behind it, message] of what the server has not acknowledged
  #keptSize = 0;
  #theirEnd = null;
  #ourEnd = null;
  #waiting = null;     // messages that came while the answer to HELLO is being handled
  #hurry = () => {
    if (!this.#plain && this.#epochKnown()) this.#fail(this.#socket, failed("the network has changed"), true);
  };
  // A page that is left for good ends its session, with the code with which its browser closes; the server would wait
  // for it. What listeners write then comes before, or their close: a visible page becomes hidden next, and ours is the
  // last to hear it; in a hidden one, ours is behind all that were there when it was hidden.
  #hide = ({ persisted }) => {
    if (persisted) return;
    if (globalThis.document?.visibilityState !== "visible") this.#depart();
    else globalThis.addEventListener("visibilitychange", this.#depart, { once: true });
  };
  #hideLast = () => {
    globalThis.removeEventListener("pagehide", this.#hide);
    globalThis.addEventListener("pagehide", this.#hide);
  };
  #depart = () => {
    if (this.#attached) this.#finishSending(GOING_AWAY, "");
  };

  constructor(target) {
    this.#target = target;
    this.reconnects = 0;
    this.#connect();
    globalThis.addEventListener?.("online", this.#hurry);
    globalThis.addEventListener?.("pagehide", this.#hide);
    globalThis.addEventListener?.("visibilitychange", this.#hideLast);
    globalThis.document?.addEventListener("resume", this.#hurry);  // a frozen page runs again
  }

  /** Whether it outlives its WebSocket; known once it is open. */
  get resumable() { return !this.#plain; }

  get bufferedAmount() {
    const queued = this.#attached || this.#plain ? this.#socket.bufferedAmount : 0;
    return Math.max(queued, this.#keptSize - MAX_KEPT + MAX_BUFFERED);
  }

  send(message) {
    if (this.#plain) this.#socket.send(message);
    else if (!this.#ourEnd) this.#keep(concatenate([[CARRIED], message]));
  }

  close(code, reason) {
    if (this.#plain) return this.#socket.close(code, reason);
    code = Math.round(code);  // as a WebSocket does, of a text as well
    if (code !== 1000 && !(code >= 3000 && code <= 4999)) {
      throw new DOMException(`a page may close with 1000, or 3000 to 4999, not ${code}`, "InvalidAccessError");
    }
    const size = new TextEncoder().encode(reason).length;
    if (size > LONGEST_REASON) {
      const limit = `a reason may have ${LONGEST_REASON} bytes of UTF-8, not ${size}`;
      throw new DOMException(limit, "SyntaxError");
    }
    this.#finishSending(code, reason);
    if (this.#attached) this.#socket.close(code, reason);
    else if (!this.#epochKnown()) {
      this.#leave();
      queueMicrotask(() => this.#finish({ code, reason, wasClean: true }));  // later, as a WebSocket does
    }
  }

  /** Send END, which nothing may follow. */
  #finishSending(code, reason) {
    if (this.#ourEnd) return;
    this.#ourEnd = { code, reason };
    this.#keep(concatenate([[END, code >> 8, code & 255], new TextEncoder().encode(reason)]));
  }

  #keep(message) {
    this.#sent += message.length - 1;
    this.#kept.push([this.#sent, message]);
    this.#keptSize += Math.max(message.length, LEAST_KEPT);
    if (this.#keptSize > MOST_KEPT) {  // not at once: whoever sends is in the middle of something
      queueMicrotask(() => this.#lose("the server does not acknowledge the answers to what it sends"));
    }
    if (!this.#attached) return;
    if (this.#received - this.#told >= ACKNOWLEDGE_BESIDE) this.#acknowledge();
    this.#socket.send(message);
  }

  #epochKnown() { return this.#epoch.some((byte) => byte); }

  // Carriers

  #connect() {
    clearTimeout(this.#timer);
    const socket = this.#socket = new WebSocket(this.#target, this.#epochKnown() ? [RESUMABLE] : [RESUMABLE, SUBPROTOCOL]);
    socket.binaryType = "arraybuffer";
    this.#timer = setTimeout(() => this.#fail(socket, failed("no answer in time")), ATTEMPT);
    socket.onopen = () => { this.#opened(socket).catch((error) => this.#fail(socket, failed(error))); };
    socket.onmessage = (event) => { if (socket === this.#socket) this.#take(socket, event.data); };
    socket.onclose = (event) => this.#fail(socket, event);
  }

  async #opened(socket) {
    if (socket.protocol === SUBPROTOCOL) {
      clearTimeout(this.#timer);
      this.#plain = true;
      socket.onmessage = (event) => this.onmessage(event);
      socket.onclose = (event) => this.#finish(event);
      this.onopen();
      return;
    }
    const hello = await this.#hello();
    if (socket === this.#socket && socket.readyState === WebSocket.OPEN) socket.send(hello);
  }

  async #hello() {
    const resuming = this.#epochKnown(), head = new Uint8Array(HELLO_SIZE), view = new DataView(head.buffer);
    if (resuming) this.#generation += 1;
    head.set([HELLO, VERSION]);
    head.set(this.#id, 2);
    head.set(this.#epoch, 18);
    view.setUint32(26, this.#generation);
    view.setUint8(30, resuming ? 1 : 0);
    view.setBigUint64(31, BigInt(this.#received));
    view.setBigUint64(39, BigInt(this.#acknowledged));
    view.setUint32(47, MAX_KEPT);
    this.#told = this.#received;
    const mac = resuming ? await crypto.subtle.sign("HMAC", this.#key, head) : new ArrayBuffer(KEY_SIZE);
    const message = new Uint8Array(HELLO_SIZE + KEY_SIZE);
    message.set(head);
    message.set(new Uint8Array(mac), HELLO_SIZE);
    return message;
  }

  async #begin(socket, data) {
    const waiting = this.#waiting = [];
    try {
      await this.#answered(socket, data);
    } catch (error) {
      this.#fail(socket, failed(error));
    }
    if (this.#waiting === waiting) this.#waiting = null;
    // Each by itself, as if it came now: an error of one must not make a gap in the positions.
    for (const each of waiting) queueMicrotask(() => { if (socket === this.#socket) this.#take(socket, each); });
  }

  async #answered(socket, data) {
    const kind = kindOf(data);
    if (kind === LOST || kind === REFUSAL) {
      this.#lose(new TextDecoder().decode(new Uint8Array(data, 1)));
      return;
    }
    const epoch = kind === WELCOME && data.byteLength === 25 + KEY_SIZE ? new Uint8Array(data, 1, 8) : null;
    if (!epoch?.some((byte) => byte)) {  // without one, the next HELLO would begin the session again
      this.#lose("the server does not answer as one that resumes connections");
      return;
    }
    const view = new DataView(data), position = Number(view.getBigUint64(9));
    if (!this.#epochKnown()) {
      const usage = { name: "HMAC", hash: "SHA-256" };
      this.#key = await crypto.subtle.importKey("raw", new Uint8Array(data, 25), usage, false, ["sign"]);
      if (socket !== this.#socket) return;
      this.#epoch = epoch.slice();
      this.#grace = view.getUint32(17);
      this.#ackAfter = view.getUint32(21) / 4;
    } else if (epoch.some((byte, index) => byte !== this.#epoch[index])) {
      this.#lose("another server answered");
      return;
    }
    if (this.#trim(position)) this.#attach(socket);
  }

  #attach(socket) {
    clearTimeout(this.#timer);
    this.#attached = true;
    this.#attachedAt = performance.now();
    if (!this.#kept.length) this.#lostAt = null;
    for (const [, message] of this.#kept) socket.send(message);
    if (this.#ourEnd) socket.close(this.#ourEnd.code, this.#ourEnd.reason);
    else if (this.#generation === 0) this.onopen();
    else this.reconnects += 1;
  }

  /**
   * Begin grace and pauses anew: something got through, or could have for long. A new carrier alone
   * does not do so. What ends each of them may be the very message that is sent first over the next
   * one, as with a gateway that closes at a frame above its limit.
   */
  #progress() {
    this.#lostAt = null;
    this.#pauses = this.#cuts = 0;
  }

  /** Leave a carrier that has ended, or is of no use; try another one after a pause, or at once. */
  #fail(socket, event, atOnce = false) {
    if (socket !== this.#socket || this.#over) return;
    const stood = this.#attached, now = performance.now();
    this.#leave();
    if (this.#isDone(stood, event)) return;
    if (!this.#epochKnown()) {
      this.#finish(event);
      return;
    }
    if (stood) this.#lostBy = describe(event);
    if (stood && now - this.#attachedAt >= Math.min(STANDS, this.#grace)) this.#progress();
    else if (stood && this.#lostAt !== null && !this.#cuts++) this.#lostAt = null;  // one may be of the network
    this.#lostAt ??= now;
    if (atOnce) {
      this.#connect();
      return;
    }
    if (now - this.#lostAt >= this.#grace) {
      const last = this.#lostBy === null ? "" : `; the last connection ended with ${this.#lostBy}`;
      this.#lose(`nothing got through for ${this.#grace / 1000} s${last}`);
      return;
    }
    const pause = Math.min(FIRST_PAUSE * 2 ** this.#pauses++, LONGEST_PAUSE) * (0.5 + Math.random() / 2);
    this.#timer = unchained(() => { if (!this.#socket && !this.#over) this.#connect(); }, pause);
  }

  /** Finish, and return true, if the carrier that has been left was the last one needed. */
  #isDone(stood, event) {
    const ours = this.#ourEnd;
    // The server answers an end with its code. Another one is of a proxy, which may still have had
    // what is kept.
    const answered = stood && event.wasClean && event.code === ours?.code;
    const end = this.#theirEnd ?? (answered || !this.#kept.length ? ours : null);
    if (end) this.#finish({ ...end, wasClean: true });
    return this.#over;
  }

  #leave() {
    clearTimeout(this.#timer);
    clearTimeout(this.#ackTimer);
    this.#ackTimer = null;
    this.#attached = false;
    this.#waiting = null;
    const socket = this.#socket;
    this.#socket = null;
    socket?.close();
  }

  #lose(reason) {
    this.#leave();
    this.#finish({ code: ABNORMAL, reason: `the session is lost: ${reason}`, wasClean: false });
  }

  #finish(event) {
    if (this.#over) return;
    this.#over = true;
    clearTimeout(this.#timer);
    clearTimeout(this.#ackTimer);
    globalThis.removeEventListener?.("online", this.#hurry);
    globalThis.removeEventListener?.("pagehide", this.#hide);
    globalThis.removeEventListener?.("visibilitychange", this.#hideLast);
    globalThis.document?.removeEventListener("resume", this.#hurry);
    this.#kept = [];
    this.#keptSize = 0;
    this.onclose(event);
  }

  // Messages

  #take(socket, data) {
    if (!this.#attached) {
      if (this.#waiting) this.#waiting.push(data);
      else this.#begin(socket, data);
      return;
    }
    const kind = kindOf(data), size = data.byteLength;
    if (kind === ACKNOWLEDGED && size === ACKNOWLEDGED_SIZE) {
      this.#trim(Number(new DataView(data).getBigUint64(1)));
      return;
    }
    if (this.#theirEnd || !((kind === CARRIED && size > 1) || (kind === END && size >= LEAST_END))) {
      const what = kind === null ? "a message without a type" : `a message of type ${kind} and ${size} bytes`;
      const where = this.#theirEnd ? "behind its END" : "on a resumable connection";
      this.#lose(`the server sent ${what} ${where}`);
      return;
    }
    this.#received += size - 1;
    if (!this.#kept.length) this.#progress();
    if (kind === END) {
      const code = new DataView(data).getUint16(1);
      this.#theirEnd = { code, reason: new TextDecoder().decode(new Uint8Array(data, 3)) };
      this.#acknowledge();
      return;
    }
    if (this.#received - this.#told >= this.#ackAfter) this.#acknowledge();
    else this.#ackTimer ??= setTimeout(() => this.#acknowledge(), ACKNOWLEDGE_WITHIN);
    this.onmessage({ data: data.slice(1) });
  }

  /** Drop what the server has received; lose the session, and return false, if it cannot have. */
  #trim(position) {
    const rest = this.#kept.findIndex(([end]) => end > position), count = rest < 0 ? this.#kept.length : rest;
    const whole = count ? this.#kept[count - 1][0] : this.#acknowledged;
    if (whole !== position) {
      const known = `${this.#acknowledged} were acknowledged before, and ${this.#sent} sent`;
      this.#lose(`the server says that it has received up to ${position}, where no message ends; ${known}`);
      return false;
    }
    if (!count) return true;
    for (const [, message] of this.#kept.splice(0, count)) this.#keptSize -= Math.max(message.length, LEAST_KEPT);
    this.#acknowledged = position;
    this.#progress();
    return true;
  }

  #acknowledge() {
    clearTimeout(this.#ackTimer);
    this.#ackTimer = null;
    if (!this.#attached || this.#told === this.#received) return;
    this.#told = this.#received;
    const message = new Uint8Array(ACKNOWLEDGED_SIZE);
    message[0] = ACKNOWLEDGED;
    new DataView(message.buffer).setBigUint64(1, BigInt(this.#received));
    this.#socket.send(message);
  }
}

/** One stream: `id`, `readable` and `writable`. Made by a `Wsmux`. */
export class WsmuxStream {
  #link;
  #head;
  // The reading half
  #reading = true;
  #ended = false;
  #whole = false;
  #wanted = false;
  #unread = [];
  #window = 0;
  #available = 0;
  #consumed = 0;
  #source;
  // The writing half
  #writing = true;
  #credit;
  #early;  // credit before the server's window, until that is announced
  #turn = null;  // of a write waiting for credit
  #sink;

  /** Only for `Wsmux`: `early` bytes may be sent, by the opener, before the answer. */
  constructor(link, id, early) {
    this.#link = link;
    this.#credit = this.#early = id % 2 ? 0 : early;
    this.#window = this.#available = id % 2 ? early : 0;
    this.#head = encodeVarint(id);
    this.id = id;
    this.readable = new ReadableStream({
      type: "bytes",
      start: (controller) => { this.#source = controller; },
      pull: () => { this.#wanted = true; this.#deliver(); },
      cancel: (reason) => this.#stopReading(codeOf(reason)),
    }, { highWaterMark: 0 });
    this.writable = new WritableStream({
      start: (controller) => {
        this.#sink = controller;
        // At once, whereas abort() would wait for a write that is waiting for credit.
        controller.signal.addEventListener("abort", () => this.#resetWriting(codeOf(controller.signal.reason)));
      },
      write: (chunk) => this.#write(chunk),
      close: () => this.#closeWriting(),
    }, { highWaterMark: MAX_FRAME, size: (chunk) => chunk?.byteLength ?? 1 });
  }

  // Methods for the link

  /** Announce the window, which opens a stream of this side, or answers one of the server. */
  accept() {
    if (!this.#reading && !this.#writing) return;  // it has ended on the server
    this.#available += this.#link.receiveWindow - this.#window;  // early bytes count
    this.#window = this.#link.receiveWindow;
    this.#sendAck(this.#window);
  }

  /** Whether the server has ended its half cleanly, so that it can be read to the end. */
  get whole() { return this.#whole; }

  refuse() {
    this.#resetWriting(REFUSED);
    this.#stopReading(REFUSED);
  }

  receiveData(bytes) {
    if (!this.#reading) {
      if (this.#ended) throw new ProtocolError(`DATA on stream ${this.id} after the peer ended its writing half`);
      return;
    }
    if (!bytes.byteLength) return;
    if (bytes.byteLength > this.#available) {
      const detail = `the server sent ${bytes.byteLength} bytes with ${this.#available} bytes of credit`;
      this.#failReading(new WsmuxError(detail, { streamErrorCode: OVERFLOW }));
      this.#send(ERROR, [WRITE, OVERFLOW]);
      this.#forgetIfDone();
      return;
    }
    this.#available -= bytes.byteLength;
    const last = this.#unread.at(-1);
    if (last && last.length + bytes.length <= JOINED) this.#unread[this.#unread.length - 1] = concatenate([last, bytes]);
    else this.#unread.push(bytes);
    this.#deliver();
  }

  receiveAck(count) {
    if (this.#early !== null) {
      const early = this.#early;
      if (count < early) {
        throw new ProtocolError(`ACK of ${count} bytes answers stream ${this.id}, where ${early} could be expected`);
      }
      this.#early = null;
      this.#link.heard(count);
      count -= early;
    }
    if (this.#credit + count > MAX_UINT32) {
      throw new ProtocolError(`ACK of ${count} bytes lifts the unspent credit of ${this.#credit} above 2^32-1`);
    }
    this.#credit += count;
    if (this.#credit) this.#turn?.resolve();
  }

  receiveError(direction, code) {
    const refused = code === REFUSED && this.id % 2 === 0;  // opened here
    const error = new WsmuxError(
      refused ? "the stream was refused: nobody took it there" : `the server reset the stream with the code ${code}`,
      { streamErrorCode: code },
    );
    if (direction === READ) {
      if (this.#failReading(error)) this.#send(ERROR, [WRITE, ...encodeVarint(code)]);
      this.#ended = true;
    } else if (this.#failWriting(error)) {
      this.#send(ERROR, [READ, ...encodeVarint(code)]);
    }
    this.#forgetIfDone();
  }

  receiveClose(direction) {
    if (direction === READ) {
      const open = this.#reading;
      this.#ended = true;
      if (open) {
        this.#reading = false;
        this.#whole = true;
        this.#send(CLOSE, [WRITE]);
        this.#deliver();
      }
    } else if (this.#failWriting(new WsmuxError("the server reads no further"))) {
      this.#send(CLOSE, [READ]);
    }
    this.#forgetIfDone();
  }

  /** End both halves without notifying the server; complete data can still be read. */
  fail(error) {
    this.#failReading(error);
    this.#failWriting(error);
  }

  // The reading half

  #deliver() {
    if (this.#wanted && this.#unread.length) {
      this.#wanted = false;
      const bytes = this.#unread.shift(), count = bytes.byteLength;
      this.#source.enqueue(bytes);  // which may pull the next one at once
      this.#consume(count);
    }
    if (this.#ended && !this.#unread.length && this.#source) {
      const source = this.#source;
      this.#source = null;
      source.close();
      source.byobRequest?.respond(0);
    }
  }

  #consume(count) {
    this.#consumed += count;
    if (!this.#reading || 2 * this.#consumed < this.#window) return;
    this.#sendAck(this.#consumed);
    this.#available += this.#consumed;
    this.#consumed = 0;
  }

  /** Return whether there was anything to fail; as failWriting(). */
  #failReading(error) {
    if (!this.#reading) return false;
    this.#reading = false;
    this.#unread = [];
    this.#source.error(error);
    this.#source = null;
    return true;
  }

  #stopReading(code) {
    this.#source = null;
    this.#unread = [];
    if (!this.#reading) return;
    this.#reading = false;
    if (code) this.#send(ERROR, [WRITE, ...encodeVarint(code)]);
    else this.#send(CLOSE, [WRITE]);
    this.#forgetIfDone();
  }

  // The writing half

  async #write(chunk) {
    try {
      const bytes = bytesOf(chunk);
      for (let offset = 0; offset < bytes.length;) {
        await null;  // frames of other streams come between
        if (!this.#credit && this.#writing) {
          this.#turn = new Deferred();
          await this.#turn.promise;
        }
        const room = this.#writing && this.#link.room();  // asked last: any number of writers may have waited
        if (room) await room;
        if (!this.#writing) return;  // the sink got the error
        const size = Math.min(bytes.length - offset, this.#credit, MAX_FRAME);
        this.#credit -= size;
        this.#send(DATA, bytes.subarray(offset, offset + size));
        offset += size;
      }
    } catch (error) {
      this.#resetWriting(0);  // truncated data must not look complete
      throw error;
    }
  }

  #closeWriting() {
    if (!this.#writing) return;
    this.#writing = false;
    this.#send(CLOSE, [READ]);
    this.#forgetIfDone();
  }

  #resetWriting(code) {
    if (!this.#writing) return;
    this.#writing = false;
    this.#turn?.resolve();
    this.#send(ERROR, [READ, ...encodeVarint(code)]);
    this.#forgetIfDone();
  }

  #failWriting(error) {
    if (!this.#writing) return false;
    this.#writing = false;
    this.#sink.error(error);
    this.#turn?.resolve();
    return true;
  }

  // Both

  #send(kind, body) {
    this.#link.send(this.#head, kind, body);
  }

  #sendAck(count) {
    const body = new Uint8Array(4);
    new DataView(body.buffer).setUint32(0, count);
    this.#send(ACK, body);
  }

  #forgetIfDone() {
    if (!this.#reading && !this.#writing) this.#link.forget(this);
  }
}

/** One connection. Created at once; `ready` resolves when it is open. */
export class Wsmux {
  #socket;
  #link;
  #limits;
  #streams = new Map();
  #theirs = 0;      // of them, opened by the server
  #next = 0;
  #peerNext = 1;
  #early = null;    // early bytes per stream, once known
  #unanswered = new Set();
  #openers = [];    // waiting until fewer are
  #unaccepted = new Map();  // streams of the server not yet accepted, to their timers
  #source;
  #wanted = false;
  #writers = [];    // waiting for room
  #looks = false;   // a look for it is under way
  #refused = null;  // why no more streams can be opened
  #stood = false;
  #over = false;
  #ready = new Deferred();
  #closed = new Deferred();
  #draining = new Deferred();

  /**
   * @param {string | URL} url of a `Mux` route, such as "/files"; relative to the page.
   * @param {object} [limits]
   * @param {number} [limits.receiveWindow] limit of unread bytes per stream.
   * @param {number} [limits.maxStreams] open streams of the server; further ones are refused.
   * @param {number} [limits.maxUnaccepted] those among them that have not been accepted.
   * @param {number} [limits.openTimeout] milliseconds to accept one before it is refused.
   * @param {boolean} [limits.resume] go on over another WebSocket when one is lost.
   */
  constructor(url, {
    receiveWindow = 256 * 1024, maxStreams = 1024, maxUnaccepted = 256, openTimeout = 10_000, resume = false,
  } = {}) {
    this.#limits = { receiveWindow, maxStreams, maxUnaccepted, openTimeout };
    for (const [name, value] of Object.entries(this.#limits)) {
      if (!Number.isInteger(value) || value < 1 || value > MAX_INT32) {
        throw new RangeError(`${name} must be a whole number from 1 to 2^31-1, not ${value}`);
      }
    }
    this.#link = {
      receiveWindow,
      send: (head, kind, body) => this.#send(head, kind, body),
      forget: (stream) => this.#forget(stream),
      room: () => this.#room(),
      heard: (window) => { this.#early = Math.min(this.#early ?? MAX_EARLY, window); },
    };
    this.incomingBidirectionalStreams = new ReadableStream({
      start: (controller) => { this.#source = controller; },
      pull: () => { this.#wanted = true; this.#hand(); },
      cancel: () => { this.#source = null; this.#unaccepted.forEach((_, stream) => this.#withdraw(stream)); },
    }, { highWaterMark: 0 });
    const target = new URL(url, globalThis.location?.href);
    target.protocol = target.protocol.replace(/^http/, "ws");
    const secure = globalThis.crypto?.subtle !== undefined;
    this.#socket = resume && secure ? new ResumableSocket(target.href) : new WebSocket(target, [SUBPROTOCOL]);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = () => { this.#stood = true; this.#ready.resolve(); };
    this.#socket.onmessage = (event) => this.#take(event.data);
    this.#socket.onclose = (event) => this.#lose(event, target);
  }

  /** Resolves when streams can be opened; rejects if that never happens. */
  get ready() { return this.#ready.promise; }

  /** Resolves to `{closeCode, reason}` at a clean end, by either side; rejects at any other. */
  get closed() { return this.#closed.promise; }

  /** Resolves when the server accepts no more streams: it closes once the open ones have ended. */
  get draining() { return this.#draining.promise; }

  /** Whether the connection outlives its WebSocket; known once `ready` has resolved. */
  get resumable() { return this.#socket.resumable ?? false; }

  /** How often it has gone on over another WebSocket. */
  get reconnects() { return this.#socket.reconnects ?? 0; }

  /** Open a stream; waits while the server has not answered 256 of them. */
  async createBidirectionalStream() {
    await this.ready;
    while (this.#unanswered.size >= MAX_PENDING && !this.#refused) {
      const turn = new Deferred();
      this.#openers.push(turn);
      await turn.promise;
    }
    if (this.#refused) throw this.#refused;
    const stream = new WsmuxStream(this.#link, this.#next, this.#early ?? 0);
    this.#next += 2;
    this.#streams.set(stream.id, stream);
    this.#unanswered.add(stream);
    stream.accept();
    return stream;
  }

  /** End the connection, and with it every stream. */
  close({ closeCode = 1000, reason = "" } = {}) {
    if (this.#over) return;
    this.#socket.close(closeCode, reason);  // raises for a code that pages may not use, and a long reason
    this.#end(new WsmuxError("the connection was closed here", { source: "session" }), { closeCode, reason });
  }

  // Messages in

  #take(data) {
    if (this.#over) return;
    try {
      if (!(data instanceof ArrayBuffer)) throw new ProtocolError("a text message");
      this.#receive(data, new DataView(data));
      this.#look();
    } catch (error) {
      if (!(error instanceof ProtocolError)) throw error;
      const said = `the server broke the protocol: ${error.message}`;
      this.#socket.close(PROTOCOL_ERROR, error.message.slice(0, MAX_REASON));
      this.#end(new WsmuxError(said, { source: "session" }));
    }
  }

  #receive(data, view) {
    const parsed = decodeVarint(view, 0);
    if (!parsed) throw new ProtocolError(data.byteLength ? "message without a whole stream id" : "empty message");
    const [id, end] = parsed;
    if (typeof id === "bigint") throw new ProtocolError(`the stream id ${id} is above 2^53-1`);
    if (end === data.byteLength) throw new ProtocolError(`message for stream ${id} ends before its type`);
    const kind = view.getUint8(end), body = end + 1, stream = this.#streams.get(id);
    switch (kind) {
      case DATA:
        if (!stream) this.#checkSeen(id, "DATA");
        else stream.receiveData(new Uint8Array(data, body));
        break;
      case ACK:
        checkEnd("ACK", id, view, body + 4);
        this.#receiveAck(id, stream, view.getUint32(body));
        break;
      case ERROR: {
        const direction = directionOf("ERROR", id, view, body), code = decodeVarint(view, body + 1);
        if (!code) throw new ProtocolError(`ERROR on stream ${id} without a whole code`);
        checkEnd("ERROR", id, view, code[1]);
        if (stream) this.#answered(stream).receiveError(direction, code[0]);
        else this.#checkSeen(id, "ERROR");
        break;
      }
      case CLOSE: {
        const direction = directionOf("CLOSE", id, view, body);
        checkEnd("CLOSE", id, view, body + 1);
        if (stream) this.#answered(stream).receiveClose(direction);
        else this.#checkSeen(id, "CLOSE");
        break;
      }
      case GO_AWAY: {
        const code = decodeVarint(view, body);
        if (!code || code[1] !== data.byteLength) throw new ProtocolError("GO_AWAY without exactly one code");
        this.#receiveGoAway(id, code[0]);
        break;
      }
      default:
        throw new ProtocolError(`message for stream ${id} has the unknown type ${kind}`);
    }
  }

  #receiveAck(id, stream, count) {
    if (!stream) {
      if (this.#seen(id)) return;  // it crossed the end of the stream
      this.#peerNext = id + 2;
      stream = new WsmuxStream(this.#link, id, Math.min(this.#limits.receiveWindow, MAX_EARLY));
      this.#streams.set(id, stream);
      this.#theirs += 1;
      stream.receiveAck(count);
      this.#offer(stream);
    } else {
      this.#answered(stream).receiveAck(count);
    }
  }

  #receiveGoAway(id, code) {
    if (id % 2 || id > this.#next) {
      throw new ProtocolError(`GO_AWAY names stream ${id}; the next one here would be ${this.#next}`);
    }
    const error = new WsmuxError("the server takes no further streams: it is going away", {
      source: "session", streamErrorCode: code,
    });
    this.#stopOpening(error);
    this.#draining.resolve();
    for (const stream of [...this.#streams.values()]) {
      if (stream.id % 2 === 0 && stream.id >= id) {
        stream.fail(error);
        this.#forget(stream);
      }
    }
  }

  /** Whether a stream was opened before; it is an error if it can never be opened. */
  #seen(id) {
    if (id % 2) return id < this.#peerNext;
    if (id < this.#next) return true;
    throw new ProtocolError(`stream ${id} has the parity of the client, which has not opened it`);
  }

  #checkSeen(id, kind) {
    if (!this.#seen(id)) throw new ProtocolError(`the first message on stream ${id} is ${kind}, not ACK`);
  }

  // Streams of this side

  #answered(stream) {
    if (this.#unanswered.delete(stream)) this.#openers.shift()?.resolve();
    return stream;
  }

  #stopOpening(error) {
    this.#refused ??= error;
    this.#openers.splice(0).forEach((turn) => turn.resolve());
  }

  #forget(stream) {
    this.#streams.delete(stream.id);
    this.#theirs -= stream.id % 2;
    this.#answered(stream);
    if (!stream.whole) this.#settle(stream);  // otherwise it can still be accepted and read
  }

  // Streams of the server

  #offer(stream) {
    const { maxStreams, maxUnaccepted, openTimeout } = this.#limits;
    if (!this.#source || this.#theirs > maxStreams || this.#unaccepted.size >= maxUnaccepted) {
      stream.refuse();
      return;
    }
    this.#unaccepted.set(stream, setTimeout(() => this.#withdraw(stream), openTimeout));
    this.#hand();
  }

  #hand() {
    if (!this.#wanted || !this.#unaccepted.size) return;
    const [stream] = this.#unaccepted.keys();
    this.#settle(stream);
    this.#wanted = false;
    stream.accept();
    this.#source.enqueue(stream);
  }

  #withdraw(stream) {
    this.#settle(stream);
    stream.refuse();
  }

  /** Remove a stream from those waiting to be accepted. */
  #settle(stream) {
    clearTimeout(this.#unaccepted.get(stream));
    this.#unaccepted.delete(stream);
  }

  // Messages out

  #send(head, kind, body) {
    if (this.#over) return;
    const message = new Uint8Array(head.length + 1 + body.length);
    message.set(head);
    message[head.length] = kind;
    message.set(body, head.length + 1);
    this.#socket.send(message);
  }

  /** Return null if the browser's queue is short enough for a data frame that is sent now, or a promise of that. */
  #room() {
    if ((this.#socket.bufferedAmount < MAX_BUFFERED && !this.#writers.length) || this.#over) return null;
    const turn = new Deferred();
    this.#writers.push(turn);
    if (!this.#looks) this.#lookLater();
    return turn.promise;
  }

  #lookLater() {
    this.#looks = true;
    unchained(() => {
      this.#looks = false;
      this.#look();
      if (this.#writers.length) this.#lookLater();
    }, LOOK_AGAIN);
  }

  /** Let writers go on, one after another, while the browser's queue has room. */
  async #look() {
    while (this.#writers.length && (this.#over || this.#socket.bufferedAmount < MAX_BUFFERED)) {
      const [turn] = this.#writers;
      turn.resolve();
      await null;  // it sends its frame; others wait behind it until then
      if (this.#writers[0] === turn) this.#writers.shift();
    }
  }

  // The end

  #lose({ code, reason, wasClean }, target) {
    const said = describe({ code, reason });
    const error = new WsmuxError(
      this.#stood ? `the server ended the connection: ${said}` : `${target} takes no connection of ${SUBPROTOCOL}: ${said}`,
      { source: "session" },
    );
    const orderly = wasClean && (code === 1000 || code === 1001);
    this.#end(error, orderly ? { closeCode: code, reason } : null);
  }

  #end(error, orderly = null) {
    if (this.#over) return;
    this.#over = true;
    this.#stopOpening(error);
    this.#ready.reject(error);
    this.#draining.resolve();
    if (orderly) this.#closed.resolve(orderly);
    else this.#closed.reject(error);
    for (const stream of [...this.#streams.values()]) {
      stream.fail(error);
      this.#forget(stream);
    }
    this.#look();
    for (const stream of this.#unaccepted.keys()) {
      this.#settle(stream);
      if (orderly) this.#source?.enqueue(stream);  // it is complete
    }
    if (orderly) this.#source?.close();
    else this.#source?.error(error);
    this.#source = null;
  }
}
