package dev.weft;

/** What an input or output is. */
public final class Value {
  private final String name;
  private final DType dtype;
  private final long[] shape;

  Value(String name, DType dtype, long[] shape) {
    this.name = name;
    this.dtype = dtype;
    this.shape = shape;
  }

  /** Its name. */
  public String name() {
    return name;
  }

  /** Its element type. */
  public DType dtype() {
    return dtype;
  }

  /** Its sizes; -1 for one that is open. */
  public long[] shape() {
    return shape.clone();
  }
}
