// One job: a program and its inputs come in a message, the answer goes back as bytes in the form of weft_remote/frames.py.
import { load, WeftError } from "./weft.js";

const INPUT = 2, ARCHIVE = 6, RUN = 10, PROTOCOL = 100, OUTPUT = 106, SYSTEM = 110;
const UNKNOWN = -(2n ** 63n), STEPS = 50, PAGE = 65536, MOST_TENSORS = 1024, MOST_DIMENSIONS = 64;
const port = globalThis.WorkerGlobalScope ? self : (await import("node:worker_threads")).parentPort;

class Failure extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** What `make` gives; its errors have this code. */
async function within(code, make) {
  try {
    return await make();
  } catch (error) {
    if (error instanceof WeftError) {
      const lines = [error.message.split("\n")[0]];
      for (const label of ["where", "why", "hint"]) if (error[label]) lines.push(`${label}: ${`${error[label]}`.replaceAll("\n", " ")}`);
      throw new Failure(code, lines.join("\n"));
    }
    throw error;
  }
}

/** By name of a dtype: the 32 bits that stand for it in tensors, the class of arrays that hold its elements. */
function dtypes(program) {
  const end = program.length - 4, length = end > 0 && new DataView(program.buffer, program.byteOffset).getUint32(end, true);
  return JSON.parse(new TextDecoder().decode(program.subarray(end - length, end))).dtypes;
}

/** The tensors of a file of inputs, each as the program's input in its place takes it. */
function tensors(file, infos, types) {
  const wrong = () => {
    throw new Failure(PROTOCOL, "the file of a job's inputs does not say what it holds");
  };
  if (file.length < 4) wrong();
  const words = new DataView(file.buffer, file.byteOffset, file.length), count = words.getUint32(0, true), heads = [];
  if (count > MOST_TENSORS) wrong();
  if (count !== infos.length) throw new Failure(INPUT, "a job has another number of inputs than its program");
  let at = 4;
  for (let i = 0; i < count; i++) {
    const rank = at + 8 <= file.length ? words.getUint32(at + 4, true) : Infinity;
    if (rank > MOST_DIMENSIONS || at + 8 + 8 * rank > file.length) wrong();
    heads.push([words.getUint32(at, true), Array.from({ length: rank }, (_, k) => Number(words.getBigInt64(at + 8 + 8 * k, true)))]);
    at += 8 + 8 * rank;
  }
  return Object.fromEntries(
    heads.map(([type, shape], i) => {
      const { name, dtype } = infos[i], [wanted, array] = types[dtype], Of = globalThis[array];
      if (type !== wanted || !Of) throw new Failure(INPUT, `input '${name}' is no ${dtype}`);
      at = Math.ceil(at / 64) * 64;
      const count = shape.reduce((a, b) => a * (b >= 0 ? b : NaN), 1);
      if (!(at + count * Of.BYTES_PER_ELEMENT <= file.length)) wrong();
      const data = new Of(file.buffer.slice(file.byteOffset + at, file.byteOffset + at + count * Of.BYTES_PER_ELEMENT));
      at += count * Of.BYTES_PER_ELEMENT;
      return [name, { data, shape }];
    }),
  );
}

/** Memory that a model makes from now on has at most so many bytes, 0: as many as it wants. Gives what it has at last. */
function bounded(most) {
  const { Memory } = WebAssembly, made = [];
  WebAssembly.Memory = function (asked) {
    const maximum = Math.min(asked.maximum ?? PAGE, most ? Math.floor(most / PAGE) : PAGE);
    if (maximum < asked.initial) throw Error(`a job may have ${most} bytes of memory`);
    made.push(new Memory({ ...asked, maximum }));
    return made.at(-1);
  };
  return () => made.reduce((sum, { buffer }) => sum + buffer.byteLength, 0);
}

/**
 * Times of `repeats` runs in milliseconds, fewer if they have taken `budget`. The clocks of browsers are coarse: runs that
 * take less than STEPS of its steps are timed several together, and a time is their mean.
 */
async function timed(run, { repeats, budget, clock }) {
  const together = async (n) => {
    const begin = performance.now();
    for (let k = 0; k < n; k++) {
      const later = run();
      if (later) await later;
    }
    return performance.now() - begin;
  };
  const times = [];
  let size = 1, spent = 0;
  while (times.length < repeats && !(budget && spent >= budget)) {
    const time = await together(size);
    if (time < STEPS * clock && size < 1 << 20) {
      size *= 2; // what was measured is not counted
      times.length = 0;
      spent = 0;
      continue;
    }
    times.push(time / size);
    spent += time;
  }
  return times;
}

async function work(order) {
  const begin = performance.now(), memory = bounded(order.memory);
  const model = await within(ARCHIVE, () => load(order.program, order.threads ? { threads: order.threads } : {}));
  const opened = performance.now() - begin, types = dtypes(order.program), given = tensors(order.inputs, model.inputs, types);
  let results;
  /** A promise, if the run has not ended when it returns: of a model with steps on the GPU. */
  const run = () => {
    const found = model.run(given);
    if (found instanceof Promise) return found.then((later) => (results = later));
    results = found;
  };
  const times = await within(RUN, async () => {
    for (let k = 0; k < order.warmups; k++) await run();
    return timed(run, { ...order, budget: order.budget / 1e6 });
  });
  const outputs = order.flags & 1 ? model.outputs.map(({ name }) => results[name]) : [];
  const size = 64 + 8 * times.length + outputs.reduce((sum, { data, shape }) => sum + 8 + 8 * shape.length + data.byteLength, 0);
  if (size > order.most) throw new Failure(OUTPUT, "a job was ended\nwhy: its results are larger than they may be");
  const answer = new Uint8Array(size), words = new DataView(answer.buffer);
  let at = 4;
  const put32 = (value) => (words.setUint32(at, value, true), (at += 4));
  const put64 = (value) => (words.setBigInt64(at, BigInt(value), true), (at += 8));
  const nanoseconds = (milliseconds) => Math.round(milliseconds * 1e6);
  put32(outputs.length);
  [times.length, nanoseconds(opened), memory(), UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, ...times.map(nanoseconds)].forEach(put64);
  for (const { dtype, shape } of outputs) {
    put32(types[dtype][0]);
    put32(shape.length);
    shape.forEach(put64);
  }
  for (const { data } of outputs) {
    answer.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return answer;
}

port.onmessage = async ({ data }) => {
  let answer;
  try {
    answer = await work(data);
  } catch (error) {
    const own = error instanceof Failure;
    const text = new TextEncoder().encode(own ? error.message : `a job ended before it had an answer\nwhy: ${error?.message ?? error}`);
    answer = new Uint8Array(4 + text.length);
    new DataView(answer.buffer).setUint32(0, own ? error.code : SYSTEM, true);
    answer.set(text, 4);
  }
  port.postMessage(answer, [answer.buffer]);
};
