import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;

import org.apache.kafka.common.utils.Exit;

/**
 * Runs Apache Kafka's own command-line tools one after the other in one process. A line of standard input is a class
 * and its arguments, separated by tabs; it is answered by one line: the exit status and, as Base64, all that the tool
 * printed.
 */
public final class KafkaTools {
    private static final ByteArrayOutputStream PRINTED = new ByteArrayOutputStream();
    private static Left left;

    public static void main(String[] unused) throws Exception {
        PrintStream answers = System.out;
        PrintStream capture = new PrintStream(PRINTED, true, StandardCharsets.UTF_8);
        System.setOut(capture);
        System.setErr(capture);
        Exit.setExitProcedure((status, message) -> leave(status));
        Exit.setHaltProcedure((status, message) -> leave(status));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            int status = run(words[0], Arrays.copyOfRange(words, 1, words.length));
            byte[] printed = left == null ? PRINTED.toByteArray() : left.printed;
            answers.println(status + " " + Base64.getEncoder().encodeToString(printed));
            PRINTED.reset();
            left = null;
        }
        System.exit(0);
    }

    private static int run(String tool, String[] arguments) {
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
            return left == null ? 0 : left.status;
        } catch (InvocationTargetException wrapped) {
            if (left != null) {
                return left.status;
            }
            wrapped.getCause().printStackTrace();
            return -1;
        } catch (ReflectiveOperationException failure) {
            failure.printStackTrace();
            return -1;
        }
    }

    /** The first time counts: a tool that catches all that is thrown leaves once more, with what it caught. */
    private static void leave(int status) {
        if (left == null) {
            left = new Left(status, PRINTED.toByteArray());
        }
        throw left;
    }

    /** The tool asked for the process to end. */
    private static final class Left extends Error {
        private final int status;
        private final byte[] printed;

        private Left(int status, byte[] printed) {
            this.status = status;
            this.printed = printed;
        }
    }
}
