/** Arrays of elements: float16, bfloat16 and smaller floats are words of their size, int64 and uint64 BigInts. */
export type Elements =
  | Int8Array | Int16Array | Int32Array | BigInt64Array | Uint8Array | Uint16Array | Uint32Array | BigUint64Array
  | Float32Array | Float64Array;

/** An input or output: a dimension is a number, or the name of a size that is open. */
export interface Info {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly (number | string)[];
}

export interface Tensor {
  readonly data: Elements;
  readonly shape: number[];
  readonly dtype: string;
}

export type Results = Record<string, Tensor>;

export interface Model {
  readonly name: string;
  readonly inputs: readonly Info[];
  readonly outputs: readonly Info[];
  /** Threads that run parallel loops, the caller's own included. */
  readonly threads: number;
  /** Why there is only one, if there is. */
  readonly oneThread?: string;
  /**
   * Runs the model.
   *
   * @param inputs by name: arrays of the input's dtype, or { data, shape } where several sizes are open.
   * @returns by name; the data are the caller's own. A model with steps on the GPU returns a promise: its runs wait for one
   *   another, and take their inputs as they are when `run` is called. `await` works for both.
   * @throws WeftError, or the promise is rejected with one.
   */
  run(inputs: Record<string, Elements | { data: Elements; shape: number[] }>): Results | Promise<Results>;
  /** Of a model with steps on the GPU: ends runs, and frees what the model has on the GPU. It does not run afterwards. */
  close?(): void;
}

/** What went wrong, and as far as they are known where, why and a hint. */
export class WeftError extends Error {
  readonly where?: string;
  readonly why?: string;
  readonly hint?: string;
}

/**
 * Loads a model: a file of `weft export`.
 *
 * @param source a URL; or a Response, a Blob or the bytes of a file.
 * @param options those of `fetch`; { integrity } refuses every file of another hash. `threads`: how many may be used,
 *   by default as many as there are processors; for models that were compiled with `+atomics`. `device`: a GPUDevice for
 *   models with steps on the GPU, by default one with the largest limits that the browser offers.
 * @throws WeftError
 */
export function load(source: string | URL | Response | Blob | BufferSource, options?: RequestInit & { threads?: number; device?: object }): Promise<Model>;
