package example;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Map;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * A punctuation that survives a restart, for one key: a timer, delivered to a topic that this processor reads too.
 *
 * <pre>
 * orders: 7 placed  ->  store 7, request timer unpaid-7  ->  timers    due:  wakeups: 7  ->  still there? reports
 * orders: 7 paid    ->  delete 7, cancel timer unpaid-7  ->  timers
 * </pre>
 */
class Reminder implements Processor<String, String, String, String> {
    private final String wakeups;
    private final long payWithinMs;
    private ProcessorContext<String, String> context;
    private KeyValueStore<String, String> unpaid;

    Reminder(String wakeups, long payWithinMs) {
        this.wakeups = wakeups;
        this.payWithinMs = payWithinMs;
    }

    @Override
    public void init(ProcessorContext<String, String> given) {
        context = given;
        unpaid = context.getStateStore("unpaid");
    }

    @Override
    public void process(Record<String, String> record) {
        String order = record.key();
        if (context.recordMetadata().orElseThrow().topic().equals(wakeups)) {
            if (unpaid.delete(order) != null) { // else it was paid after the timer had left
                context.forward(record.withHeaders(new RecordHeaders()), "reports");
            }
        } else if ("placed".equals(record.value())) {
            unpaid.put(order, record.value());
            request(record, Map.of(
                    "timer-topic", wakeups,
                    "timer-delay-ms", String.valueOf(payWithinMs),
                    "timer-key", order,
                    // The task that has the state of the key, by whatever partitioner the order came.
                    "timer-partition", String.valueOf(context.taskId().partition())));
        } else if ("paid".equals(record.value())) {
            unpaid.delete(order);
            request(record, Map.of("timer-action", "cancel"));
        }
    }

    /** Send a request with the id as key: a timer and its cancel reach the same partition. */
    private void request(Record<String, String> record, Map<String, String> timer) {
        String id = "unpaid-" + record.key();
        var headers = new RecordHeaders();
        headers.add("timer-id", id.getBytes(UTF_8));
        timer.forEach((name, value) -> headers.add(name, value.getBytes(UTF_8)));
        context.forward(record.withKey(id).withHeaders(headers), "timers");
    }
}
