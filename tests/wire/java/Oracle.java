import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.Locale;
import java.util.StringJoiner;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;

/**
 * Reads lines "CLASS VERSION HEX" and answers each with one line: what Kafka's own class makes of these bytes, encoded
 * again, a space, and its fields as text; or "ERROR" and why.
 */
public class Oracle {
    public static void main(String[] arguments) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        PrintStream out = new PrintStream(System.out, false);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            try {
                out.println(answer(line.split(" ", -1)));
            } catch (Exception error) {
                out.println("ERROR " + error);
            }
        }
        out.flush();
    }

    private static String answer(String[] words) throws Exception {
        Message message = (Message) Class.forName(words[0]).getConstructor().newInstance();
        short version = Short.parseShort(words[1]);
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(words[2]));
        message.read(new ByteBufferAccessor(bytes), version);
        if (bytes.hasRemaining()) {
            return "ERROR " + bytes.remaining() + " bytes left over";
        }
        String text = dump(message);
        return hex(MessageUtil.toByteBufferAccessor(message, version).buffer()) + " " + text;
    }

    private static String dump(Object value) throws Exception {
        if (value == null) return "~";
        if (value instanceof Boolean flag) return flag ? "1" : "0";
        if (value instanceof Double number) return String.format("%016x", Double.doubleToRawLongBits(number));
        if (value instanceof Number number) return number.toString();
        if (value instanceof String text) return "s" + HexFormat.of().formatHex(text.getBytes("UTF-8"));
        if (value instanceof byte[] bytes) return "b" + HexFormat.of().formatHex(bytes);
        if (value instanceof ByteBuffer bytes) return "b" + hex(bytes.duplicate());
        if (value.getClass().getSimpleName().equals("MemoryRecords")) { // whose package is another in later releases
            return "b" + hex(((ByteBuffer) value.getClass().getMethod("buffer").invoke(value)).duplicate());
        }
        if (value instanceof Uuid id) {
            return String.format("u%016x%016x", id.getMostSignificantBits(), id.getLeastSignificantBits());
        }
        StringJoiner parts;
        if (value instanceof Iterable<?> elements) {
            parts = new StringJoiner(",", "[", "]");
            for (Object element : elements) parts.add(dump(element));
            return parts.toString();
        }
        parts = new StringJoiner(",", "{", "}");
        for (Field field : value.getClass().getDeclaredFields()) {
            boolean own = Modifier.isStatic(field.getModifiers()) || field.getName().equals("_unknownTaggedFields");
            if (own || field.getName().equals("next") || field.getName().equals("prev")) continue;
            field.setAccessible(true);
            parts.add(field.getName().toLowerCase(Locale.ROOT) + "=" + dump(field.get(value)));
        }
        return parts.toString();
    }

    private static String hex(ByteBuffer bytes) {
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        return HexFormat.of().formatHex(copy);
    }
}
