import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

import org.apache.kafka.common.errors.ApiException;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.ControlRecordType;
import org.apache.kafka.common.record.EndTransactionMarker;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.common.RequestLocal;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.Scheduler;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogAppendInfo;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogStartOffsetIncrementReason;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.log.VerificationGuard;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

/**
 * One partition's log as Apache Kafka's broker keeps it. A line of standard input is an order and its arguments,
 * separated by tabs; it is answered by one line: a result, or the name of an error.
 */
public final class TransactionLog {
    private static final HexFormat HEX = HexFormat.of();
    private static final ScheduledExecutorService UNUSED = Executors.newScheduledThreadPool(1);
    private static UnifiedLog log;
    private static List<VerificationGuard> guards;

    public static void main(String[] unused) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t", -1);
            String said;
            try {
                said = answer(words[0], Arrays.copyOfRange(words, 1, words.length));
            } catch (ApiException refused) {
                said = Errors.forException(refused).name();
            } catch (Exception failure) {
                failure.printStackTrace();
                said = "failed " + failure;
            }
            answers.println(said);
        }
        System.exit(0);
    }

    private static String answer(String order, String[] words) throws Exception {
        switch (order) {
            case "marker":
                return HEX.formatHex(marker(words));
            case "open":
                open(words[0], Integer.parseInt(words[1]), Boolean.parseBoolean(words[2]));
                return "" + log.logEndOffset();
            case "verify":
                return "" + verify(words);
            case "append":
                return append(words[0], AppendOrigin.CLIENT, guard(Integer.parseInt(words[1])));
            case "decide":
                return append(words[0], AppendOrigin.COORDINATOR, VerificationGuard.SENTINEL);
            case "replicated":
                return "" + log.updateHighWatermark(Long.parseLong(words[0]));
            case "stable":
                return "" + log.lastStableOffset();
            case "aborted":
                return aborted(Long.parseLong(words[0]));
            case "producers":
                return producers();
            case "snapshot":
                return ProducerStateManager.readSnapshot(new File(words[0])).stream()
                    .sorted(Comparator.comparingLong(each -> each.producerId()))
                    .map(each -> each.producerId() + ":" + each.producerEpoch() + ":" + each.lastSeq() + ":"
                        + each.coordinatorEpoch() + ":" + each.currentTxnFirstOffset().orElse(-1))
                    .collect(Collectors.joining(","));
            case "cut":
                log.truncateTo(Long.parseLong(words[0]));
                return "" + log.logEndOffset();
            case "delete":
                log.maybeIncrementLogStartOffset(Long.parseLong(words[0]),
                    LogStartOffsetIncrementReason.ClientRecordDeletion);
                return "" + log.logStartOffset();
            case "close":
                log.close();
                return "closed";
            default:
                throw new IllegalArgumentException(order);
        }
    }

    private static byte[] marker(String[] words) {
        ControlRecordType type = Boolean.parseBoolean(words[2]) ? ControlRecordType.COMMIT : ControlRecordType.ABORT;
        MemoryRecords made = MemoryRecords.withEndTransactionMarker(Long.parseLong(words[4]), Long.parseLong(words[0]),
            Short.parseShort(words[1]), new EndTransactionMarker(type, Integer.parseInt(words[3])));
        ByteBuffer buffer = made.buffer();
        byte[] found = new byte[buffer.remaining()];
        buffer.get(found);
        return found;
    }

    private static void open(String directory, int segmentBytes, boolean verifies) throws Exception {
        LogConfig config = new LogConfig(Map.of("segment.bytes", "" + Math.max(segmentBytes, 1 << 20),
            "internal.segment.bytes", "" + segmentBytes, "retention.ms", "-1", "message.timestamp.type", "CreateTime"));
        File place = new File(directory);
        place.mkdirs();
        log = UnifiedLog.create(place, config, 0, 0, new Never(), new BrokerTopicStats(), Time.SYSTEM, 1000,
            new ProducerStateManagerConfig(Integer.MAX_VALUE, verifies), Integer.MAX_VALUE, new LogDirFailureChannel(1),
            true, Optional.empty());
        guards = new ArrayList<>(List.of(VerificationGuard.SENTINEL));
    }

    private static int verify(String[] words) {
        VerificationGuard guard = log.maybeStartTransactionVerification(Long.parseLong(words[0]),
            Integer.parseInt(words[1]), Short.parseShort(words[2]), Boolean.parseBoolean(words[3]));
        if (!guards.contains(guard)) {
            guards.add(guard);
        }
        return guards.indexOf(guard);
    }

    private static VerificationGuard guard(int number) {
        return guards.get(number);
    }

    private static String append(String batch, AppendOrigin origin, VerificationGuard guard) throws Exception {
        long before = log.logEndOffset();
        MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(HEX.parseHex(batch)));
        LogAppendInfo made = log.appendAsLeader(records, 0, origin, RequestLocal.noCaching(), guard);
        return made.firstOffset() + " " + made.lastOffset() + (log.logEndOffset() == before ? " again" : "");
    }

    /** What a reader of committed records is told, of all that it may read from there on in one segment. */
    private static String aborted(long offset) throws Exception {
        FetchDataInfo read = log.read(offset, Integer.MAX_VALUE, FetchIsolation.TXN_COMMITTED, true);
        long[] end = {offset};
        read.records.batches().forEach(batch -> end[0] = batch.nextOffset());
        return end[0] + ":" + read.abortedTransactions.orElse(List.of()).stream()
            .map(each -> each.producerId() + "@" + each.firstOffset()).collect(Collectors.joining(","));
    }

    private static String producers() {
        return log.activeProducers().stream()
            .sorted(Comparator.comparingLong(each -> each.producerId()))
            .map(each -> each.producerId() + ":" + each.producerEpoch() + ":" + each.lastSequence() + ":"
                + each.coordinatorEpoch() + ":" + each.currentTxnStartOffset())
            .collect(Collectors.joining(","));
    }

    /** Nothing is done behind the test's back. */
    private static final class Never implements Scheduler {
        @Override
        public void startup() {
        }

        @Override
        public void shutdown() {
        }

        @Override
        public ScheduledFuture<?> schedule(String name, Runnable task, long delayMs, long periodMs) {
            return UNUSED.schedule(() -> { }, 1, TimeUnit.DAYS);
        }

        @Override
        public void resizeThreadPool(int size) {
        }
    }
}
