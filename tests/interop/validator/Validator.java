import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Iterator;
import java.util.stream.Collectors;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.errors.CorruptRecordException;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.CompressionType;
import org.apache.kafka.common.record.MemoryRecords;
import org.apache.kafka.common.record.MutableRecordBatch;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.record.RecordBatch;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.requests.ProduceRequest;
import org.apache.kafka.common.utils.BufferSupplier;
import org.apache.kafka.common.utils.CloseableIterator;
import org.apache.kafka.common.utils.PrimitiveRef;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AppendOrigin;
import org.apache.kafka.storage.internals.log.LogValidator;
import org.apache.kafka.storage.internals.log.RecordValidationException;
import org.xerial.snappy.SnappyError;

/**
 * What Apache Kafka's own broker says of a batch of a client, and whether its own consumer can read it.
 *
 * A line of input: compact (0, 1), bounds of time before and after (milliseconds), and the batch in hexadecimal. A line
 * of output: the error code (0: taken), the records that are to blame (or -), the highest time in the header then (or -),
 * and read or unread.
 */
public final class Validator {
    private static final class Counts implements LogValidator.MetricsRecorder {
        @Override
        public void recordInvalidMagic() {}

        @Override
        public void recordInvalidOffset() {}

        @Override
        public void recordInvalidSequence() {}

        @Override
        public void recordInvalidChecksums() {}

        @Override
        public void recordNoKeyCompactedTopic() {}
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            byte[] batch = HexFormat.of().parseHex(words[3]);
            boolean compact = words[0].equals("1");
            System.out.println(
                    validated(batch.clone(), compact, Long.parseLong(words[1]), Long.parseLong(words[2]))
                            + (isReadable(batch) ? " read" : " unread"));
        }
    }

    private static String validated(byte[] bytes, boolean compact, long before, long after) {
        try {
            MemoryRecords records = MemoryRecords.readableRecords(ByteBuffer.wrap(bytes));
            ProduceRequest.validateRecords(ApiKeys.PRODUCE.latestVersion(), records);
            CompressionType source = CompressionType.NONE;
            for (MutableRecordBatch batch : records.batches()) { // as UnifiedLog does before it validates
                if (batch.baseOffset() != 0) {
                    throw new InvalidRecordException("base offset");
                }
                if (!batch.isValid()) {
                    throw new CorruptRecordException("checksum");
                }
                source = batch.compressionType();
            }
            LogValidator.ValidationResult result = new LogValidator(
                            records,
                            new TopicPartition("t", 0),
                            Time.SYSTEM,
                            source,
                            Compression.of(source).build(),
                            compact,
                            RecordBatch.MAGIC_VALUE_V2,
                            TimestampType.CREATE_TIME,
                            before,
                            after,
                            7,
                            AppendOrigin.CLIENT)
                    .validateMessagesAndAssignOffsets(PrimitiveRef.ofLong(0), new Counts(), BufferSupplier.NO_CACHING);
            return "0 - " + result.validatedRecords.batches().iterator().next().maxTimestamp();
        } catch (RecordValidationException failure) {
            String blamed = failure.recordErrors().stream()
                    .map(error -> Integer.toString(error.batchIndex))
                    .collect(Collectors.joining(","));
            return Errors.forException(failure.invalidException()).code() + " " + blamed + " -";
        } catch (Exception | SnappyError failure) {
            return Errors.forException(failure).code() + " - -";
        }
    }

    /** As a consumer reads it that checks no CRC, for the broker has. */
    private static boolean isReadable(byte[] bytes) {
        try {
            int count = 0;
            for (MutableRecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches()) {
                try (CloseableIterator<Record> records = batch.streamingIterator(BufferSupplier.NO_CACHING)) {
                    for (Iterator<Record> each = records; each.hasNext(); count++) {
                        Record record = each.next();
                        for (var header : record.headers()) {
                            header.key();
                        }
                    }
                }
                if (count != batch.countOrNull()) {
                    return false;
                }
            }
            return count > 0;
        } catch (Exception | SnappyError failure) {
            return false;
        }
    }
}
