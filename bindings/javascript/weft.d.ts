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

export interface Model {
  readonly name: string;
  readonly inputs: readonly Info[];
  readonly outputs: readonly Info[];
  /** Threads that run parallel loops, the caller's own included. */
  readonly threads: number;
  /** Why there is only one, if there is. */
  readonly oneThread?: string;
  /**
   * Runs the model, and returns when it has run.
   *
   * @param inputs by name: arrays of the input's dtype, or { data, shape } where several sizes are open.
   * @returns by name; the data are the caller's own.
   * @throws WeftError
   */
  run(inputs: Record<string, Elements | { data: Elements; shape: number[] }>): Record<string, Tensor>;
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
 *   by default as many as there are processors; for models that were compiled with `+atomics`.
 * @throws WeftError
 */
export function load(source: string | URL | Response | Blob | BufferSource, options?: RequestInit & { threads?: number }): Promise<Model>;
