import java.util.OptionalLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.EndTransactionMarker;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.ProducerAppendInfo;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;

/**
 * Whether Kafka takes a marker, one line for each case: the epoch of the producer, whether its transaction is open, the
 * marker's epoch, the version of transactions, the coordinator's epoch, and NONE or the exception.
 */
public final class MarkerRule {
    private static final boolean[] EITHER = {true, false};
    private static final int[] VERSIONS = {0, 2};

    public static void main(String[] arguments) {
        for (short known = 0; known < 3; known++)
            for (boolean open : EITHER)
                for (short epoch = 0; epoch < 4; epoch++)
                    for (int version : VERSIONS)
                        for (int coordinator = 0; coordinator < 2; coordinator++)
                            System.out.println(known + " " + (open ? 1 : 0) + " " + epoch + " " + version + " " + coordinator
                                + " " + told(known, open, epoch, (short) version, coordinator));
    }

    private static String told(short known, boolean open, short epoch, short version, int coordinator) {
        OptionalLong first = open ? OptionalLong.of(1) : OptionalLong.empty();
        ProducerStateEntry entry = new ProducerStateEntry(7, known, 0, 0, first);
        ProducerAppendInfo info =
            new ProducerAppendInfo(new TopicPartition("t", 0), 7, entry, AppendOrigin.COORDINATOR, null);
        EndTransactionMarker marker = new EndTransactionMarker(ControlRecordType.COMMIT, coordinator);
        try {
            info.appendEndTxnMarker(marker, epoch, 5, 0, version);
            return "NONE";
        } catch (RuntimeException error) {
            return error.getClass().getSimpleName();
        }
    }
}
