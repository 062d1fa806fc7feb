/**
 * The agent in a page, or in node: the protocol of weft_remote/frames.py over a WebSocket, each message of which is one
 * frame. Files are kept in memory by their SHA-256. Each job is a worker of its own, which ends with its time or with the
 * connection.
 */

const VERSION = 1, HEADER = 16, LARGEST = 256 << 10, RUN_BYTES = 120, MOST_SAMPLES = 100000;
const HELLO = 1, ALIVE = 2, HAVE = 3, PUT = 4, RUN = 5, CANCEL = 6, RESULT = 65, ERROR = 66, DATA = 67, STILL = 68;
const PROTOCOL = 100, MISSING = 101, DISK = 103, DAMAGED = 104, TIME = 105, OUTPUT = 106, CRASH = 107, CANCELLED = 108, TOO_LARGE = 109;
const STORE = 1 << 30; // bytes

const Of = globalThis.Worker ?? (await import("node:worker_threads")).Worker;
const hex = (bytes) => Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
const digest = async (bytes) => new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
const view = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);

/** A worker for one job: `done(answer)`, or `done(null, why)` if it ended without one. */
function started() {
  const worker = new Of(new URL("./job.js", import.meta.url), { type: "module" });
  const one = { done() {}, give: (order) => worker.postMessage(order), end: () => worker.terminate() };
  const failed = (error) => one.done(null, error?.message || "its worker failed");
  if (worker.on) worker.on("message", (answer) => one.done(answer)).on("error", failed);
  else Object.assign(worker, { onmessage: ({ data }) => one.done(data), onerror: failed });
  return one;
}

/**
 * Answers the requests that come by a WebSocket, until it is closed.
 *
 * @param changed is called with whether a job runs.
 */
export function serve(socket, changed = () => {}) {
  const store = new Map(), parts = new Map(), clock = resolution();
  let silence = 20000, heard = performance.now(), turn = Promise.resolve(), spare = started(), job, greeted;
  socket.binaryType = "arraybuffer";

  function send(kind, tag, content) {
    const frame = new Uint8Array(HEADER + content.length), words = view(frame);
    frame.set([87, 69, 70, 84]); // WEFT
    [kind, tag, content.length].forEach((word, k) => words.setUint32(4 + 4 * k, word, true));
    frame.set(content, HEADER);
    if (socket.readyState === 1) socket.send(frame);
  }
  function refuse(tag, code, message) {
    const text = new TextEncoder().encode(message), content = new Uint8Array(4 + text.length);
    view(content).setUint32(0, code, true);
    content.set(text, 4);
    send(ERROR, tag, content);
  }
  function held(tag, bytes, complete) {
    const content = new Uint8Array(12);
    view(content).setBigUint64(0, BigInt(bytes), true);
    content[8] = complete;
    send(RESULT, tag, content);
  }

  // -- files
  function used(name) {
    const file = store.get(name);
    store.delete(name);
    if (file) store.set(name, file); // the last of those in the map was used last
    return file;
  }
  function have(tag, content) {
    const name = hex(content), file = used(name);
    held(tag, file ? file.length : (parts.get(name)?.held ?? 0), !!file);
  }
  async function put(tag, content) {
    if (content.length < 48) return refuse(tag, PROTOCOL, "a PUT has another size than its content");
    const name = hex(content.subarray(0, 32)), words = view(content), data = content.subarray(48);
    const [total, at] = [32, 40].map((k) => Number(words.getBigUint64(k, true)));
    if (store.has(name)) return held(tag, store.get(name).length, true);
    if (total > STORE) return refuse(tag, TOO_LARGE, `a file is larger than the page's store of ${STORE} bytes`);
    if (!total || data.length > total - at) return refuse(tag, PROTOCOL, "a PUT has another size than its content");
    if (!at) {
      parts.clear();
      let sum = total;
      for (const file of store.values()) sum += file.length;
      for (const [old, file] of store) if (sum > STORE) store.delete(old), (sum -= file.length);
      try {
        parts.set(name, { held: 0, data: new Uint8Array(total) });
      } catch (error) {
        return refuse(tag, DISK, `the page has no memory for a file\nwhy: ${error.message}`);
      }
    }
    const part = parts.get(name);
    if (part?.held !== at || part.data.length !== total) return refuse(tag, DAMAGED, "a part of a file does not follow the part before it");
    part.data.set(data, at);
    part.held += data.length;
    if (part.held < total) return held(tag, part.held, false);
    parts.delete(name);
    if (hex(await digest(part.data)) !== name) return refuse(tag, DAMAGED, "a file has not arrived as it was sent\nwhy: its SHA-256 is another");
    store.set(name, part.data);
    held(tag, total, true);
  }

  // -- jobs
  function run(tag, content) {
    const words = view(content), number = (k) => Number(words.getBigUint64(k, true));
    const [threads, warmups, repeats, flags] = [64, 68, 72, 76].map((k) => words.getUint32(k, true));
    const [budget, limit, , memory, most] = [80, 88, 96, 104, 112].map(number);
    if (threads > 4096 || !repeats || repeats > MOST_SAMPLES || !limit || limit > 86400000) return refuse(tag, PROTOCOL, "a RUN asks for numbers that are not allowed");
    const program = used(hex(content.subarray(0, 32))), inputs = used(hex(content.subarray(32, 64)));
    if (!program || !inputs) return answer(tag, new Uint8Array([MISSING, 0, 0, 0, ...new TextEncoder().encode("a file of a job is not in the store")]));
    const timer = setTimeout(late, limit);
    job = { tag, worker: spare, ends: performance.now() + limit, limit, timer };
    spare = started();
    changed(true);
    job.worker.done = (found, why) => {
      end();
      if (!found) refuse(tag, CRASH, `a job ended before it had an answer\nwhy: ${why}`);
      else if (found.length > most) refuse(tag, OUTPUT, "a job was ended\nwhy: its results are larger than they may be");
      else turn = turn.then(() => answer(tag, found)); // a request that comes meanwhile has its answer after this one
    };
    job.worker.give({ program, inputs, threads, warmups, repeats, flags, budget, memory, most, clock });
  }
  /** Ends the job that runs. */
  function end() {
    clearTimeout(job.timer);
    job.worker.done = () => {};
    job.worker.end();
    job = undefined;
    changed(false);
  }
  /** Also asked when the other side says something: timers of a page that is not in front are slow. */
  function late() {
    if (!job || performance.now() < job.ends - 1) return;
    const { tag, limit } = job;
    end();
    refuse(tag, TIME, `a job was ended\nwhy: it took longer than ${limit} ms`);
  }
  async function answer(tag, found) {
    for (let at = 0; at < found.length; at += LARGEST) send(DATA, tag, found.subarray(at, at + LARGEST));
    const content = new Uint8Array(40);
    content.set(await digest(found));
    view(content).setBigUint64(32, BigInt(found.length), true);
    send(RESULT, tag, content);
  }

  // -- the connection
  function hello(tag, content) {
    if (content.length !== 8) return refuse(tag, PROTOCOL, "a HELLO has another size");
    const version = view(content).getUint32(0, true);
    if (version !== VERSION) return refuse(tag, PROTOCOL, `this page speaks version ${VERSION} of the protocol, the other side version ${version}\nhint: load the page again`);
    silence = Math.min(3600000, Math.max(100, view(content).getUint32(4, true)));
    greeted = true;
    send(RESULT, tag, new TextEncoder().encode(Object.entries({ protocol: VERSION, ...facts(), resolution: Math.round(clock * 1e6), store_bytes: STORE }).map(([k, v]) => `${k}=${v}\n`).join("")));
  }
  function wrong(tag, message) {
    refuse(tag, PROTOCOL, message);
    socket.close();
  }
  const handled = { [HELLO]: hello, [HAVE]: have, [PUT]: put, [RUN]: run }, sizes = { [HAVE]: 32, [RUN]: RUN_BYTES };
  socket.addEventListener("message", ({ data }) => {
    heard = performance.now();
    const frame = new Uint8Array(data instanceof ArrayBuffer ? data : 0);
    if (frame.length < HEADER || String.fromCharCode(...frame.subarray(0, 4)) !== "WEFT" || view(frame).getUint32(12, true) !== frame.length - HEADER || frame.length > HEADER + LARGEST)
      return wrong(0, "what was sent is no frame");
    const kind = view(frame).getUint32(4, true), tag = view(frame).getUint32(8, true), content = frame.slice(HEADER);
    if (kind === ALIVE || kind === CANCEL) {
      if (kind === CANCEL && job?.tag === tag) end(), refuse(tag, CANCELLED, "the job was cancelled");
      late();
      if (job) send(STILL, job.tag, new Uint8Array([1, 0, 0, 0]));
      return;
    }
    if (job) return end(), wrong(tag, "a request was sent before the one before it had its answer");
    turn = turn.then(() => {
      if (!handled[kind]) return wrong(tag, `a request of kind ${kind} has no meaning here`);
      if (!greeted && kind !== HELLO) return wrong(tag, "the first request is no HELLO");
      if ((sizes[kind] ?? content.length) !== content.length) return refuse(tag, PROTOCOL, "a request has another size");
      return handled[kind](tag, content);
    });
  });
  const watch = setInterval(() => performance.now() - heard > silence && socket.close(), 1000);
  socket.addEventListener("close", () => {
    clearInterval(watch);
    if (job) end();
    spare.end();
    store.clear();
    parts.clear();
  });
}

// -- what the board is

/** The smallest step of the clock, in milliseconds. */
function resolution() {
  let least = Infinity;
  for (let k = 0; k < 20; k++) {
    const begin = performance.now();
    let now;
    do now = performance.now();
    while (now === begin);
    least = Math.min(least, now - begin);
  }
  return least;
}

/** Whether the engine takes a function that leaves a vector, with this code. */
function takes(...code) {
  const body = [0, ...code, 11], section = [1, body.length, ...body];
  return WebAssembly.validate(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, section.length, ...section]));
}

function facts() {
  const splat = [65, 0, 253, 15]; // i8x16.splat(0)
  const isolated = globalThis.crossOriginIsolated ?? !globalThis.document;
  const features = [
    takes(...splat) && "simd128",
    takes(...splat, ...splat, ...splat, 253, 133, 2) && "relaxed-simd", // f32x4.relaxed_madd
    isolated && globalThis.SharedArrayBuffer && "atomics",
  ].filter(Boolean);
  const { userAgent = "an engine without a name", userAgentData, platform = "" } = globalThis.navigator ?? {};
  return {
    architecture: "wasm32", bits: 32, order: "little", system: userAgentData?.platform || platform,
    model: /(Firefox|Edg|HeadlessChrome|Chrome|Version|Node\.js)\/[\d.]+/.exec(userAgent)?.[0] ?? userAgent, agent: userAgent,
    cores: isolated ? (globalThis.navigator?.hardwareConcurrency ?? 1) : 1, features: features.join(" "),
  };
}
