package dev.weft;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** Tests on the files that tests/bindings/materials.py writes, in the folder WEFT_TEST_FOLDER. */
public final class FilesTest {
  private static int checks;

  private static Path at(String name) {
    return Paths.get(System.getenv("WEFT_TEST_FOLDER"), name);
  }

  private static byte[] bytes(String name) throws IOException {
    return Files.readAllBytes(at(name));
  }

  private static ByteBuffer direct(byte[] of) {
    ByteBuffer made = ByteBuffer.allocateDirect(of.length);
    made.put(of).flip();
    return made;
  }

  private static Tensor tensor(String name, DType dtype, long... shape) throws IOException {
    return Tensor.of(direct(bytes(name)), dtype, shape);
  }

  private static void check(boolean condition) {
    ++checks;
    if (!condition) {
      throw new AssertionError("check " + checks);
    }
  }

  private static boolean same(Tensor t, String name) throws IOException {
    byte[] found = new byte[t.data().remaining()];
    t.data().get(found);
    return Arrays.equals(found, bytes(name));
  }

  private static void fails(WeftException.Kind kind, String part, Runnable work) {
    ++checks;
    try {
      work.run();
    } catch (WeftException error) {
      if (error.kind() == kind && error.getMessage().contains(part)) {
        return;
      }
      throw new AssertionError(error.kind() + ": " + error.getMessage());
    }
    throw new AssertionError("nothing was thrown, expected: " + part);
  }

  private static void refuses(String part, Runnable work) {
    ++checks;
    try {
      work.run();
    } catch (IllegalArgumentException error) {
      check(error.getMessage().contains(part));
      return;
    }
    throw new AssertionError("nothing was thrown, expected: " + part);
  }

  private static void runMlp(Program p) throws Exception {
    Value in = p.inputs().get(0);
    check(p.name().equals("mlp") && in.name().equals("x") && in.dtype().equals(DType.FLOAT32) && in.dtype().name().equals("float32"));
    check(Arrays.equals(in.shape(), new long[] {-1, 64}) && p.outputs().size() == 1 && p.threads() > 0);
    Tensor x = tensor("mlp-x.bin", DType.FLOAT32, 3, 64);
    List<Tensor> results = p.run(x);
    check(results.size() == 1 && Arrays.equals(results.get(0).shape(), new long[] {3, 32}) && same(results.get(0), "mlp-y.bin"));
    float[] numbers = new float[192];
    x.data().asFloatBuffer().get(numbers);
    check(Arrays.equals(p.run(Tensor.of(numbers, 3, 64)).get(0).floats(), results.get(0).floats()));

    Tensor room = Tensor.zeros(DType.FLOAT32, 3, 32);
    p.runInto(Collections.singletonList(room), x);
    check(same(room, "mlp-y.bin"));
    fails(WeftException.Kind.OUTPUT, "has size 2 on axis 0", () -> p.runInto(Collections.singletonList(Tensor.zeros(DType.FLOAT32, 2, 32)), x));
    fails(WeftException.Kind.ARGUMENT, "'mlp' has 1 outputs, 0 are given", () -> p.runInto(Collections.emptyList(), x));
    fails(WeftException.Kind.INPUT, "input 'x' of 'mlp' has size 63 on axis 1, expected 64", () -> p.run(Tensor.zeros(DType.FLOAT32, 3, 63)));
    fails(WeftException.Kind.INPUT, "float32", () -> p.run(Tensor.zeros(DType.FLOAT64, 3, 64)));
    fails(WeftException.Kind.ARGUMENT, "'mlp' has 1 inputs, 0 are given", () -> p.run());
    check(Arrays.equals(p.run(Tensor.zeros(DType.FLOAT32, 0, 64)).get(0).shape(), new long[] {0, 32}));
    refuses("is given 2 elements", () -> Tensor.of(new float[2], 3));
    refuses("a direct buffer of 12 bytes, given is another one", () -> Tensor.of(ByteBuffer.allocate(12), DType.FLOAT32, 3));
    refuses("fits in no buffer", () -> Tensor.zeros(DType.FLOAT32, 1L << 40, 1L << 40));

    ExecutorService threads = Executors.newFixedThreadPool(4);
    List<Callable<Boolean>> work = new ArrayList<>();
    for (int k = 0; k < 200; ++k) {
      work.add(() -> same(p.run(x).get(0), "mlp-y.bin"));
    }
    for (Future<Boolean> good : threads.invokeAll(work)) {
      check(good.get());
    }
    List<Future<?>> late = new ArrayList<>();
    for (int k = 0; k < 4; ++k) {
      late.add(threads.submit(() -> {
        while (true) {
          p.run(x);
        }
      }));
    }
    Thread.sleep(20);
    p.close();
    p.close();
    for (Future<?> end : late) {
      try {
        end.get();
        check(false);
      } catch (java.util.concurrent.ExecutionException error) {
        check(error.getCause().getMessage().equals("the program 'mlp' is closed"));
      }
    }
    threads.shutdown();
    check(same(results.get(0), "mlp-y.bin"));
  }

  private static void runMixed(Program p) throws IOException {
    Tensor k = tensor("mixed-k.bin", DType.INT64, 5);
    List<Tensor> results = p.run(tensor("mixed-x.bin", DType.FLOAT32, 4, 3), k, tensor("mixed-s.bin", DType.FLOAT16), tensor("mixed-m.bin", DType.BOOL, 2));
    String[] names = {"y", "places", "t", "w", "l"};
    for (int i = 0; i < names.length; ++i) {
      check(p.outputs().get(i).name().equals(names[i]) && same(results.get(i), "mixed-" + names[i] + ".bin"));
    }
    check(Arrays.equals(results.get(1).shape(), new long[] {2, 7}) && results.get(2).shape().length == 0);
    check(Arrays.equals(p.run(results.get(0), k, results.get(2), results.get(3)).get(1).shape(), new long[] {2, 7}));
    check(results.get(1).data().order() == ByteOrder.nativeOrder());
    p.close();
  }

  private static void errors(Library weft) throws IOException {
    fails(WeftException.Kind.FILE, "cannot be loaded", () -> Library.load(at("nothing.so").toString()));
    fails(WeftException.Kind.FILE, "no function 'weft_api_version'", () -> Library.load(at("mixed.so").toString()));
    fails(WeftException.Kind.FILE, "nothing-é-😀.weft", () -> weft.open(at("nothing-é-😀.weft").toString()));
    fails(WeftException.Kind.ARCHIVE, "damaged", () -> weft.open(at("damaged.weft").toString()));
    fails(WeftException.Kind.MACHINE, "was compiled for", () -> weft.open(at("foreign.weft").toString()));
    fails(WeftException.Kind.ARGUMENT, "path is a null pointer", weft::openInside);
    fails(WeftException.Kind.ARGUMENT, "opens no file", () -> Library.load(at("mlp.so").toString()).open(at("mlp.weft").toString()));
    ByteBuffer half = direct(Arrays.copyOf(bytes("mlp.weft"), 9999));
    fails(WeftException.Kind.ARCHIVE, "", () -> weft.open(half, new Library.Options()));
    Library.Options options = new Library.Options().threads(1).sha256(new String(bytes("mlp.sha256"), StandardCharsets.US_ASCII));
    try (Program p = weft.open(at("mlp.weft").toString(), options)) {
      check(p.threads() == 1);
    }
    fails(WeftException.Kind.ARCHIVE, "not the expected one", () -> weft.open(at("mixed.weft").toString(), options));
  }

  public static void main(String[] arguments) throws Exception {
    Library weft = Library.load(at("libweft.so").toString());
    runMlp(weft.open(at("mlp.weft").toString()));
    runMlp(weft.open(direct(bytes("mlp.weft")), new Library.Options()));
    runMlp(Library.load(at("mlp.so").toString()).openInside());
    runMixed(weft.open(at("mixed.weft").toString()));
    runMixed(Library.load(at("mixed.so").toString(), "mixed").openInside());
    errors(weft);
    System.out.println(checks + " passed, 0 failed");
  }
}
