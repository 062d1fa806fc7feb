import dev.weft.Library;
import dev.weft.Program;
import dev.weft.Tensor;
import dev.weft.WeftException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;

/**
 * Runs a model with one float32 input and one float32 output of two dimensions on rows from a file.
 *
 * <p>Run LIBRARY ARCHIVE|- INPUT OUTPUT
 *
 * <p>LIBRARY is libweft, and ARCHIVE a file of {@code weft compile}; or LIBRARY is a file of {@code weft export}, and
 * ARCHIVE is "-". INPUT and OUTPUT hold the numbers, row by row, and nothing else.
 */
final class Run {
  public static void main(String[] arguments) throws IOException {
    try {
      Library library = Library.load(arguments[0]);
      try (Program program = arguments[1].equals("-") ? library.openInside() : library.open(arguments[1])) {
        byte[] bytes = Files.readAllBytes(Paths.get(arguments[2]));
        long width = program.inputs().get(0).shape()[1];
        Tensor x = Tensor.zeros(program.inputs().get(0).dtype(), bytes.length / 4 / width, width);
        x.data().put(bytes);
        ByteBuffer y = program.run(x).get(0).data();
        byte[] result = new byte[y.remaining()];
        y.get(result);
        Files.write(Paths.get(arguments[3]), result);
      }
    } catch (WeftException error) {
      System.err.println(error.getMessage());
      System.exit(1);
    }
  }
}
