import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashSet;
import java.util.HexFormat;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.coordinator.transaction.TransactionLog;
import org.apache.kafka.coordinator.transaction.TransactionMetadata;
import org.apache.kafka.coordinator.transaction.TransactionState;
import org.apache.kafka.coordinator.transaction.TxnTransitMetadata;
import org.apache.kafka.server.common.TransactionVersion;

/**
 * One transactional id, kept by Apache Kafka's own TransactionMetadata and TransactionLog. A line of standard input is a
 * thing that happens to it and its arguments, separated by spaces; it is answered by one line: the fields afterwards, and
 * in hexadecimal the record that Kafka writes of it; or "failed" and why.
 */
public final class Transactions {
    private static final short NONE = -1;
    private static TransactionMetadata kept;

    public static void main(String[] unused) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            try {
                System.out.println(answer(line.split(" ", -1)));
            } catch (Exception failure) {
                System.out.println("failed " + failure);
            }
        }
    }

    private static String answer(String[] words) {
        switch (words[0]) {
            case "new" -> {
                kept = new TransactionMetadata("t", number(words[1]), NONE, NONE, (short) number(words[2]), NONE,
                    (int) number(words[3]), TransactionState.EMPTY, Set.of(), NONE, number(words[4]), version("0"));
                return told(kept);
            }
            case "read" -> {
                var read = TransactionLog.read(bytes(words[1]), bytes(words[2]));
                return told(((TransactionLog.TxnRecord) read).metadata());
            }
            default -> {
                TxnTransitMetadata next = prepared(words);
                byte[] record = TransactionLog.valueToBytes(next, version("2"));
                kept.completeTransitionTo(next);
                return told(kept) + " " + HexFormat.of().formatHex(record);
            }
        }
    }

    private static TxnTransitMetadata prepared(String[] words) {
        return switch (words[0]) {
            case "init" -> kept.prepareIncrementProducerEpoch((int) number(words[2]), words[1].equals("-")
                ? Optional.empty() : Optional.of((short) number(words[1])), number(words[3]));
            case "rotate" -> kept.prepareProducerIdRotation(number(words[1]), (int) number(words[2]), number(words[3]),
                words[4].equals("1"));
            case "add" -> kept.prepareAddPartitions(partitions(words[3]), number(words[2]), version(words[1]));
            case "end" -> kept.prepareAbortOrCommit(words[1].equals("1") ? TransactionState.PREPARE_COMMIT
                : TransactionState.PREPARE_ABORT, version(words[2]), number(words[3]), number(words[4]),
                words[5].equals("1"));
            case "fence" -> fenced(version(words[1]), number(words[2]), number(words[3]));
            case "complete" -> kept.prepareComplete(number(words[1]));
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    /** As Kafka's coordinator does between the two preparations. */
    private static TxnTransitMetadata fenced(TransactionVersion version, long next, long now) {
        short epoch = kept.prepareFenceProducerEpoch().producerEpoch();
        kept.pendingState(Optional.empty());
        if (!version.supportsEpochBump()) {
            kept.setProducerEpoch(epoch);
            kept.setLastProducerEpoch(NONE);
        }
        return kept.prepareAbortOrCommit(TransactionState.PREPARE_ABORT, version, next, now, false);
    }

    private static Set<TopicPartition> partitions(String names) {
        return Arrays.stream(names.split(",")).filter(name -> !name.isEmpty()).map(name -> {
            String[] halves = name.split(":");
            return new TopicPartition(halves[0], Integer.parseInt(halves[1]));
        }).collect(Collectors.toCollection(HashSet::new));
    }

    private static String told(TransactionMetadata of) {
        Set<String> names = of.topicPartitions().stream().map(each -> each.topic() + ":" + each.partition())
            .collect(Collectors.toCollection(TreeSet::new));
        return String.join(" ", of.state().stateName(), "" + of.producerId(), "" + of.prevProducerId(),
            "" + of.producerEpoch(), "" + of.lastProducerEpoch(), "" + of.txnTimeoutMs(), "" + of.txnStartTimestamp(),
            "" + of.txnLastUpdateTimestamp(), "" + of.clientTransactionVersion().featureLevel(),
            "[" + String.join(",", names) + "]");
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }

    private static TransactionVersion version(String level) {
        return TransactionVersion.fromFeatureLevel(Short.parseShort(level));
    }

    private static ByteBuffer bytes(String hex) {
        return ByteBuffer.wrap(HexFormat.of().parseHex(hex));
    }
}
