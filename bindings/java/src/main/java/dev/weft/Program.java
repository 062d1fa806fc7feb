package dev.weft;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * A loaded model. Several threads may run it at once. {@link #close()} alone gives its memory back; tensors that it gave
 * stay valid.
 */
public final class Program implements AutoCloseable {
  private final long functions;
  private final ReentrantReadWriteLock lock = new ReentrantReadWriteLock(); // close waits for runs
  private long program;
  private ByteBuffer archive; // used where it lies
  private final String name;
  private final String target;
  private final String version;
  private final int threads;
  private final List<Value> inputs;
  private final List<Value> outputs;

  Program(long functions, long program, ByteBuffer archive) {
    this.functions = functions;
    this.program = program;
    this.archive = archive;
    try {
      int[] counts = new int[3];
      byte[][] texts = Natives.describe(functions, program, counts);
      name = text(texts[0]);
      target = text(texts[1]);
      version = text(texts[2]);
      threads = counts[2];
      inputs = values(false, counts[0]);
      outputs = values(true, counts[1]);
    } catch (Throwable error) {
      close();
      throw error;
    }
  }

  private List<Value> values(boolean output, int count) {
    List<Value> found = new ArrayList<>();
    for (int k = 0; k < count; ++k) {
      int[] type = new int[2];
      byte[][] texts = new byte[2][];
      long[] shape = Natives.value(functions, program, output, k, type, texts);
      found.add(new Value(text(texts[0]), new DType(text(texts[1]), type[0], type[1]), shape));
    }
    return Collections.unmodifiableList(found);
  }

  private static String text(byte[] utf8) {
    return new String(utf8, StandardCharsets.UTF_8);
  }

  /** The model's name. */
  public String name() {
    return name;
  }

  /** What it was compiled for. */
  public String target() {
    return target;
  }

  /** The version of Weft by which it was compiled. */
  public String version() {
    return version;
  }

  /** Threads of a run. */
  public int threads() {
    return threads;
  }

  /** What it takes, in order. */
  public List<Value> inputs() {
    return inputs;
  }

  /** What it gives, in order. */
  public List<Value> outputs() {
    return outputs;
  }

  /**
   * Runs the model on inputs in the order of {@link #inputs()}.
   *
   * @return results in the order of {@link #outputs()}, in memory of the JVM
   * @throws WeftException an input does not fit, the run failed, or the program is closed
   */
  public List<Tensor> run(Tensor... given) {
    long[] results = new long[outputs.size()];
    long[][] shapes = new long[outputs.size()][];
    for (int k = 0; k < shapes.length; ++k) {
      shapes[k] = new long[outputs.get(k).shape().length];
    }
    call(given, null, new int[outputs.size()], shapes, results);
    List<Tensor> found = new ArrayList<>();
    try {
      for (int k = 0; k < results.length; ++k) {
        Tensor made = Tensor.zeros(outputs.get(k).dtype(), shapes[k]);
        Natives.take(functions, results[k], made.data(), made.data().capacity());
        results[k] = 0;
        found.add(made);
      }
    } finally {
      for (long left : results) {
        if (left != 0) {
          Natives.take(functions, left, null, 0);
        }
      }
    }
    return found;
  }

  /**
   * Runs the model, and writes results to tensors of the caller, in the order of {@link #outputs()}: their dtypes and
   * sizes are those of the results.
   *
   * @throws WeftException as {@link #run}, or storage does not fit
   */
  public void runInto(List<Tensor> storage, Tensor... given) {
    if (storage.size() != outputs.size()) {
      throw wrongCount(storage.size(), outputs.size(), "outputs");
    }
    Tensor[] into = storage.toArray(new Tensor[0]);
    call(given, buffers(into), types(into), shapes(into), null);
  }

  private void call(Tensor[] given, ByteBuffer[] into, int[] types, long[][] shapes, long[] results) {
    if (given.length != inputs.size()) {
      throw wrongCount(given.length, inputs.size(), "inputs");
    }
    lock.readLock().lock();
    try {
      if (program == 0) {
        throw new WeftException(WeftException.Kind.ARGUMENT, "the program '" + name + "' is closed");
      }
      Natives.run(functions, program, buffers(given), types(given), shapes(given), into, types, shapes, results);
    } finally {
      lock.readLock().unlock();
    }
  }

  private WeftException wrongCount(int given, int wanted, String what) {
    return new WeftException(WeftException.Kind.ARGUMENT, "'" + name + "' has " + wanted + " " + what + ", " + given + " are given");
  }

  private static ByteBuffer[] buffers(Tensor[] of) {
    return Arrays.stream(of).map(Tensor::data).toArray(ByteBuffer[]::new);
  }

  private static int[] types(Tensor[] of) {
    return Arrays.stream(of).mapToInt(t -> t.dtype().packed()).toArray();
  }

  private static long[][] shapes(Tensor[] of) {
    return Arrays.stream(of).map(Tensor::shape).toArray(long[][]::new);
  }

  /** Waits for runs of other threads and gives the program's memory back. May be called again. */
  @Override
  public void close() {
    lock.writeLock().lock();
    try {
      if (program != 0) {
        Natives.close(functions, program);
        program = 0;
        archive = null;
      }
    } finally {
      lock.writeLock().unlock();
    }
  }
}
