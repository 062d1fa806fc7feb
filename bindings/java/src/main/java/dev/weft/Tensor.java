package dev.weft;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/** An array, row by row, in a direct buffer. */
public final class Tensor {
  private final DType dtype;
  private final long[] shape;
  private final ByteBuffer data;

  private Tensor(DType dtype, long[] shape, ByteBuffer data) {
    this.dtype = dtype;
    this.shape = shape;
    this.data = data;
  }

  /**
   * A tensor of the elements of a direct buffer between its position and limit, used where they lie, in the order of the
   * machine ({@link ByteOrder#nativeOrder()}).
   *
   * @throws IllegalArgumentException the buffer is not direct, or has not the bytes of the sizes
   */
  public static Tensor of(ByteBuffer data, DType dtype, long... shape) {
    long bytes = bytes(dtype, shape);
    if (!data.isDirect() || data.remaining() != bytes) {
      throw new IllegalArgumentException("a tensor of " + dtype + Arrays.toString(shape) + " is a direct buffer of "
          + bytes + " bytes, given is " + (data.isDirect() ? "a direct" : "another") + " one of " + data.remaining());
    }
    return new Tensor(dtype, shape.clone(), data.slice().order(ByteOrder.nativeOrder()));
  }

  /**
   * A tensor of zeros with memory of its own, to be filled.
   *
   * @throws IllegalArgumentException it has more than 2 GiB
   */
  public static Tensor zeros(DType dtype, long... shape) {
    return of(ByteBuffer.allocateDirect((int) bytes(dtype, shape)), dtype, shape);
  }

  /** A float32 tensor of a copy of numbers. */
  public static Tensor of(float[] data, long... shape) {
    Tensor made = zeros(DType.FLOAT32, same(data.length, shape));
    made.data.asFloatBuffer().put(data);
    return made;
  }

  /** A float64 tensor of a copy of numbers. */
  public static Tensor of(double[] data, long... shape) {
    Tensor made = zeros(DType.FLOAT64, same(data.length, shape));
    made.data.asDoubleBuffer().put(data);
    return made;
  }

  /** An int32 tensor of a copy of numbers. */
  public static Tensor of(int[] data, long... shape) {
    Tensor made = zeros(DType.INT32, same(data.length, shape));
    made.data.asIntBuffer().put(data);
    return made;
  }

  /** An int64 tensor of a copy of numbers. */
  public static Tensor of(long[] data, long... shape) {
    Tensor made = zeros(DType.INT64, same(data.length, shape));
    made.data.asLongBuffer().put(data);
    return made;
  }

  /** The element type. */
  public DType dtype() {
    return dtype;
  }

  /** The sizes. */
  public long[] shape() {
    return shape.clone();
  }

  /** The elements, where they lie, in the order of the machine: {@code data().asFloatBuffer()}. */
  public ByteBuffer data() {
    return data.duplicate().order(ByteOrder.nativeOrder());
  }

  /**
   * A copy of the elements.
   *
   * @throws IllegalStateException they are not float32
   */
  public float[] floats() {
    if (!dtype.equals(DType.FLOAT32)) {
      throw new IllegalStateException("the tensor is " + dtype + ", not float32");
    }
    float[] made = new float[data.capacity() / 4];
    data().asFloatBuffer().get(made);
    return made;
  }

  private static long[] same(int length, long[] shape) {
    if (bytes(DType.INT8, shape) != length) {
      throw new IllegalArgumentException("a tensor of sizes " + Arrays.toString(shape) + " is given " + length + " elements");
    }
    return shape;
  }

  private static long bytes(DType dtype, long[] shape) {
    long bytes = dtype.bytes();
    for (long n : shape) {
      if (n < 0 || (n > 0 && bytes > Integer.MAX_VALUE / n)) {
        throw new IllegalArgumentException("a tensor of sizes " + Arrays.toString(shape) + " fits in no buffer");
      }
      bytes *= n;
    }
    return bytes;
  }
}
