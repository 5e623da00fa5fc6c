package example;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.time.Duration;
import java.util.List;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.springframework.kafka.listener.ConsumerRecordRecoverer;
import org.springframework.kafka.listener.adapter.RecordFilterStrategy;

/**
 * Sends a record that failed back to its topic by a timer, later each time, and at last to the DLQ.
 *
 * <p>As recoverer of a DefaultErrorHandler: if the request is not acknowledged, {@link #accept} throws, the offset is
 * not committed, and the record is handled again. As filter of the listener: all groups of the topic read the retry,
 * and those that did not ask for it leave it out. The headers are those of the Python client.
 */
public class TimerRetry implements ConsumerRecordRecoverer, RecordFilterStrategy<byte[], byte[]> {
    private static final String RETRIES = "timer-retries";
    private static final String RETRY_GROUP = "timer-retry-group";
    private static final String RETRY_OF = "timer-retry-of";

    private final TimerTemplate timers;
    private final String group;
    private final List<Duration> delays;
    private final ConsumerRecordRecoverer deadLetters;

    /**
     * @param delays of the first retry, the second and so on; their number is the number of retries
     * @param deadLetters for a record whose last retry failed
     */
    public TimerRetry(
            TimerTemplate timers, String group, List<Duration> delays, ConsumerRecordRecoverer deadLetters) {
        this.timers = timers;
        this.group = group;
        this.delays = delays;
        this.deadLetters = deadLetters;
    }

    /** Return true for a retry of another group. */
    @Override
    public boolean filter(ConsumerRecord<byte[], byte[]> record) {
        String asker = text(record, RETRY_GROUP);
        return asker != null && !asker.equals(group);
    }

    @Override
    @SuppressWarnings("unchecked") // the type of all records of the factory
    public void accept(ConsumerRecord<?, ?> failed, Exception error) {
        var record = (ConsumerRecord<byte[], byte[]>) failed;
        boolean isOurs = group.equals(text(record, RETRY_GROUP));
        int retries = isOurs ? number(text(record, RETRIES)) : 0;
        if (retries >= delays.size()) {
            deadLetters.accept(record, error);
            return;
        }
        String place = record.topic() + "/" + record.partition() + "/" + record.offset();
        String first = isOurs ? text(record, RETRY_OF) : null;
        var headers = new RecordHeaders();
        for (Header header : record.headers()) {
            if (!header.key().startsWith("timer-") || header.key().equals("timer-trace-id")) {
                headers.add(header);
            }
        }
        headers.add(RETRIES, String.valueOf(retries + 1).getBytes(UTF_8));
        headers.add(RETRY_GROUP, group.getBytes(UTF_8));
        headers.add(RETRY_OF, (first == null ? place : first).getBytes(UTF_8));
        // Made of the position: a second request for the same failure, after a crash, replaces the first.
        String id = "retry/" + group + "/" + place;
        timers.schedule(id, delays.get(retries), record.topic(), record.key(), record.value(), headers)
                .join();
    }

    private static int number(String text) {
        return text != null && text.matches("[0-9]{1,9}") ? Integer.parseInt(text) : 0;
    }

    private static String text(ConsumerRecord<?, ?> record, String name) {
        Header header = record.headers().lastHeader(name);
        return header == null || header.value() == null ? null : new String(header.value(), UTF_8);
    }
}
