// Runs models for tests, in node and in pages: a job { calls: [{ name: { dtype, shape, data: base64 } }], threads?, together? }
// and the bytes of a model give what the model says of itself and, for each call, its outputs or its error. Calls that are
// `together` all start before the first has ended.
import { load, WeftError } from "../weft.js";

export const said = ({ message, where, why, hint }) => ({ error: { message, where, why, hint } });

/** The class of arrays that hold a dtype's elements, or words of their size. */
function elements(dtype) {
  const [, kind, digits = 8] = /^([a-z]+)(\d+)?/.exec(dtype), float = kind === "float" && digits > 16;
  return globalThis[`${digits > 32 && !float ? "Big" : ""}${float ? "Float" : kind === "int" ? "Int" : "Uint"}${Math.max(8, digits)}Array`];
}
const array = ({ dtype, shape, data }) => ({
  data: new (elements(dtype))(Uint8Array.from(atob(data), (c) => c.charCodeAt()).buffer), shape,
});
function plain({ dtype, shape, data }) {
  const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength), parts = [];
  for (let at = 0; at < bytes.length; at += 0x6000) parts.push(btoa(String.fromCharCode(...bytes.subarray(at, at + 0x6000))));
  return { dtype, shape, data: parts.join("") };
}
const mapped = (values, f) => Object.fromEntries(Object.entries(values).map(([name, value]) => [name, f(value)]));

export async function answers(job, bytes) {
  const found = [];
  try {
    const { name, inputs, outputs, threads, oneThread, run } = await load(bytes, { threads: job.threads });
    found.push({ name, inputs, outputs, threads, oneThread });
    const answer = async (call) => {
      try {
        return mapped(await run(mapped(call, array)), plain);
      } catch (error) {
        if (!(error instanceof WeftError)) throw error;
        return said(error);
      }
    };
    if (job.together) found.push(...(await Promise.all(job.calls.map(answer))));
    else for (const call of job.calls ?? []) found.push(await answer(call));
  } catch (error) {
    if (!(error instanceof WeftError)) throw error;
    found.push(said(error));
  }
  return found;
}
