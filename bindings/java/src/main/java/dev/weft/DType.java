package dev.weft;

/** An element type, as DLPack has it. */
public final class DType {
  public static final DType INT8 = new DType("int8", 0, 8);
  public static final DType INT16 = new DType("int16", 0, 16);
  public static final DType INT32 = new DType("int32", 0, 32);
  public static final DType INT64 = new DType("int64", 0, 64);
  public static final DType UINT8 = new DType("uint8", 1, 8);
  public static final DType FLOAT16 = new DType("float16", 2, 16);
  public static final DType FLOAT32 = new DType("float32", 2, 32);
  public static final DType FLOAT64 = new DType("float64", 2, 64);
  public static final DType BFLOAT16 = new DType("bfloat16", 4, 16);
  public static final DType BOOL = new DType("bool", 6, 8);

  private final String name;
  private final int code;
  private final int bits;

  /** A type by its name, and DLPack's code and bits. */
  public DType(String name, int code, int bits) {
    this.name = name;
    this.code = code;
    this.bits = bits;
  }

  /** Its name: "float32". */
  public String name() {
    return name;
  }

  /** DLPack's code. */
  public int code() {
    return code;
  }

  /** The bits of an element. */
  public int bits() {
    return bits;
  }

  /** The bytes of an element. */
  public int bytes() {
    return bits < 8 ? 1 : bits / 8;
  }

  /** As one number, for native code. */
  int packed() {
    return code << 8 | bits;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof DType && ((DType) other).packed() == packed();
  }

  @Override
  public int hashCode() {
    return packed();
  }

  @Override
  public String toString() {
    return name;
  }
}
