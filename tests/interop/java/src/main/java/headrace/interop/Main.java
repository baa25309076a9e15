package headrace.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;

/**
 * Runs one case per line of standard input ("NAME ARGUMENT") against the broker that the first argument names, and
 * answers each with one line: "ok", or "failed" and why. The second argument, if any, is a file of client properties.
 */
public final class Main {
    public static void main(String[] arguments) throws Exception {
        Map<String, Case> cases = Cases.all();
        Map<String, Object> login = arguments.length > 1 ? read(Path.of(arguments[1])) : Map.of();
        try (Broker broker = new Broker(arguments[0], login)) {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ", 2);
                System.out.println(outcome(cases.get(words[0]), broker, words.length > 1 ? words[1] : ""));
            }
        }
    }

    private static Map<String, Object> read(Path file) throws Exception {
        Properties properties = new Properties();
        try (var lines = Files.newBufferedReader(file)) {
            properties.load(lines);
        }
        Map<String, Object> found = new HashMap<>();
        properties.forEach((name, value) -> found.put((String) name, value));
        return found;
    }

    private static String outcome(Case wanted, Broker broker, String argument) {
        try {
            wanted.run(broker, argument);
            return "ok";
        } catch (Throwable failure) {
            StringBuilder story = new StringBuilder("failed ").append(failure);
            for (StackTraceElement frame : failure.getStackTrace()) {
                if (frame.getClassName().startsWith("headrace.")) {
                    story.append(" at ").append(frame);
                }
            }
            return story.toString().replace('\n', ' ');
        }
    }

    /** One thing that must hold; it throws where it does not. */
    interface Case {
        void run(Broker broker, String argument) throws Exception;
    }
}
