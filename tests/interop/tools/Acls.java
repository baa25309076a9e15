import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/**
 * Apache Kafka's own authorizer. A line of standard input has sentences, parted by tabs, whose words are parted by spaces;
 * it is answered by a line with the answers, parted by tabs. "new" begins with no ACLs, "acl" adds one, "may" asks for a
 * decision and "may-any" for one of a resource type: 1 or 0. "list" answers the number of ACLs that a filter matches.
 */
public final class Acls {
    private static StandardAuthorizer authorizer;

    public static void main(String[] unused) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            List<String> answers = new ArrayList<>();
            for (String sentence : line.split("\t")) {
                answers.add(answer(sentence.split(" ")));
            }
            System.out.println(String.join("\t", answers));
        }
    }

    private static String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "new" -> {
                authorizer = new StandardAuthorizer();
                authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                authorizer.configure(Map.of("super.users", words[1], "allow.everyone.if.no.acl.found", words[2]));
                authorizer.loadSnapshot(Map.of());
                authorizer.completeInitialLoad();
                return "";
            }
            case "acl" -> {
                authorizer.addAcl(Uuid.randomUuid(), new StandardAcl(type(words[1]), words[3],
                    PatternType.fromCode(code(words[2])), words[4], words[5], operation(words[6]),
                    AclPermissionType.fromCode(code(words[7]))));
                return "";
            }
            case "may" -> {
                Action action = new Action(operation(words[3]),
                    new ResourcePattern(type(words[4]), words[5], PatternType.LITERAL), 1, true, true);
                return told(authorizer.authorize(client(words), List.of(action)).get(0));
            }
            case "may-any" -> {
                return told(authorizer.authorizeByResourceType(client(words), operation(words[3]), type(words[4])));
            }
            case "list" -> {
                AclBindingFilter filter = new AclBindingFilter(
                    new ResourcePatternFilter(type(words[1]), name(words[3]), PatternType.fromCode(code(words[2]))),
                    new AccessControlEntryFilter(name(words[4]), name(words[5]), operation(words[6]),
                        AclPermissionType.fromCode(code(words[7]))));
                int found = 0;
                for (var unused : authorizer.acls(filter)) {
                    found++;
                }
                return Integer.toString(found);
            }
            default -> throw new IllegalArgumentException(words[0]);
        }
    }

    private static String told(AuthorizationResult result) {
        return result == AuthorizationResult.ALLOWED ? "1" : "0";
    }

    private static byte code(String word) {
        return Byte.parseByte(word);
    }

    private static ResourceType type(String word) {
        return ResourceType.fromCode(code(word));
    }

    private static AclOperation operation(String word) {
        return AclOperation.fromCode(code(word));
    }

    private static String name(String word) {
        return word.equals("-") ? null : word;
    }

    private static AuthorizableRequestContext client(String[] words) throws Exception {
        String[] named = words[1].split(":");
        KafkaPrincipal principal = new KafkaPrincipal(named[0], named[1]);
        InetAddress address = InetAddress.getByName(words[2]);
        return new AuthorizableRequestContext() {
            @Override
            public String listenerName() {
                return "PLAINTEXT";
            }

            @Override
            public SecurityProtocol securityProtocol() {
                return SecurityProtocol.PLAINTEXT;
            }

            @Override
            public KafkaPrincipal principal() {
                return principal;
            }

            @Override
            public InetAddress clientAddress() {
                return address;
            }

            @Override
            public int requestType() {
                return 3;
            }

            @Override
            public int requestVersion() {
                return 12;
            }

            @Override
            public String clientId() {
                return "";
            }

            @Override
            public int correlationId() {
                return 0;
            }
        };
    }
}
