import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.Endpoint;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;
import org.apache.kafka.server.config.AbstractKafkaConfig;

/**
 * Tells how Apache Kafka's own classes read listeners, and how they name the subject of a certificate. Each line of
 * standard input is answered by one line; "no" is a refusal.
 */
public final class Listeners {
    public static void main(String[] unused) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            System.out.println(
                switch (words[0]) {
                    case "listeners" -> listeners(words[1]);
                    case "name" -> name(words[1]);
                    default -> principal(words[1], words[2]);
                });
        }
    }

    private static String listeners(String text) {
        Map<ListenerName, SecurityProtocol> protocols = new HashMap<>();
        for (SecurityProtocol each : SecurityProtocol.values()) {
            protocols.put(ListenerName.forSecurityProtocol(each), each);
        }
        try {
            List<String> found = new ArrayList<>();
            List<String> items = Arrays.asList(text.trim().split("\\s*,\\s*"));
            for (Endpoint each : AbstractKafkaConfig.listenerListToEndPoints(items, protocols)) {
                String host = each.host() == null ? "" : each.host();
                found.add(each.listener() + " " + each.securityProtocol() + " " + host + " " + each.port());
            }
            return String.join(",", found);
        } catch (RuntimeException refused) {
            return "no";
        }
    }

    /** The X.500 name of a certificate's subject, both in hexadecimal. */
    private static String name(String subject) {
        String name = new javax.security.auth.x500.X500Principal(bytes(subject)).getName();
        return java.util.HexFormat.of().formatHex(name.getBytes(StandardCharsets.UTF_8));
    }

    private static byte[] bytes(String text) {
        return java.util.HexFormat.of().parseHex(text);
    }

    private static String principal(String rules, String name) {
        String text = new String(bytes(rules), StandardCharsets.UTF_8);
        try {
            return "as " + SslPrincipalMapper.fromRules(text).getName(name);
        } catch (IndexOutOfBoundsException broken) {
            return "broken";
        } catch (Exception refused) {
            return "no";
        }
    }
}
