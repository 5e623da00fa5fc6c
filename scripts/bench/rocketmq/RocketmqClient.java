import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/**
 * RocketMQ's side of the bench: does what each line of its standard input says, and answers "= NUMBERS".
 *
 * <pre>
 * ready                                           nothing                                             "0"
 * send TOPIC COUNT DUE_MS BODY_BYTES              as fast as it goes                                  "FAILED"
 * pace TOPIC RATE SECONDS DELAY_MS BODY_BYTES     RATE a second, each due DELAY_MS later              "COUNT FAILED"
 * receive TOPIC COUNT FILE                        once nothing more is stored in TOPIC: number,
 *                                                 due, stored, three longs a message                  "COUNT"
 * </pre>
 *
 * A topic is made when it is first used. A body begins with the message's number and due time; stored is the broker's
 * clock.
 */
public final class RocketmqClient {
    private static final int IN_FLIGHT = 256;
    private static final int QUEUES = 4;
    private static final int QUIET_MS = 1_500;
    private static final int GIVE_UP_MS = 60_000;

    private final String nameServer;
    private final DefaultMQProducer producer = new DefaultMQProducer("bench");
    private final Semaphore room = new Semaphore(IN_FLIGHT);
    private final AtomicLong failures = new AtomicLong();

    private RocketmqClient(String nameServer) throws Exception {
        this.nameServer = nameServer;
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(10_000);
        producer.start();
    }

    /** The client's own threads would outlive the end of this one. */
    public static void main(String[] arguments) {
        try {
            RocketmqClient client = new RocketmqClient(arguments[0]);
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                System.out.println("= " + client.answer(line.split(" ")));
            }
            System.exit(0);
        } catch (Exception trouble) {
            trouble.printStackTrace();
            System.exit(1);
        }
    }

    private String answer(String[] words) throws Exception {
        switch (words[0]) {
            case "ready":
                return "0";
            case "send":
                create(words[1]);
                return "" + send(words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]), words[4]);
            case "pace":
                create(words[1]);
                return pace(words[1], Integer.parseInt(words[2]), Double.parseDouble(words[3]),
                        Long.parseLong(words[4]), words[5]);
            case "receive":
                return "" + receive(words[1], Long.parseLong(words[2]), Path.of(words[3]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    /** A broker says that it has started before the name server knows it. */
    private void create(String topic) throws Exception {
        for (int tries = 1; ; tries++) {
            try {
                producer.createTopic("TBW102", topic, QUEUES, Map.of());
                return;
            } catch (MQClientException notYet) {
                if (tries == 50) {
                    throw notYet;
                }
                Thread.sleep(200);
            }
        }
    }

    private long send(String topic, int count, long due, String bodyBytes) throws Exception {
        for (int number = 0; number < count; number++) {
            send(topic, number, due, Integer.parseInt(bodyBytes));
        }
        return failed();
    }

    private String pace(String topic, int rate, double seconds, long delayMs, String bodyBytes) throws Exception {
        int count = (int) (rate * seconds);
        long begin = System.nanoTime();
        for (int number = 0; number < count; number++) {
            while ((System.nanoTime() - begin) * 1e-9 * rate < number) {
                Thread.sleep(1);
            }
            send(topic, number, System.currentTimeMillis() + delayMs, Integer.parseInt(bodyBytes));
        }
        return count + " " + failed();
    }

    /** At most IN_FLIGHT messages wait for their answer. */
    private void send(String topic, int number, long due, int bodyBytes) throws Exception {
        Message message = new Message(topic, ByteBuffer.allocate(bodyBytes).putLong(number).putLong(due).array());
        message.setDeliverTimeMs(due);
        room.acquire();
        attempt(message);
    }

    /** A busy broker has stored nothing: send again. */
    private void attempt(Message message) throws Exception {
        producer.send(message, new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                room.release();
            }

            @Override
            public void onException(Throwable wrong) {
                try {
                    if (wrong instanceof MQBrokerException refused
                            && refused.getResponseCode() == ResponseCode.SYSTEM_BUSY) {
                        attempt(message);
                        return;
                    }
                } catch (Exception another) {
                    wrong = another;
                }
                if (failures.getAndIncrement() == 0) {
                    wrong.printStackTrace();
                }
                room.release();
            }
        });
    }

    private long failed() throws InterruptedException {
        room.acquire(IN_FLIGHT);
        room.release(IN_FLIGHT);
        return failures.getAndSet(0);
    }

    /** Reads all messages as soon as none was stored for a while, so that no consumer takes CPU before. */
    private long receive(String topic, long count, Path file) throws Exception {
        Collection<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
        long stored = 0;
        long since = System.currentTimeMillis();
        while (System.currentTimeMillis() < since + (stored < count ? GIVE_UP_MS : QUIET_MS)) {
            Thread.sleep(100);
            long found = 0;
            for (MessageQueue queue : queues) {
                found += producer.maxOffset(queue);
            }
            if (found != stored) {
                stored = found;
                since = System.currentTimeMillis();
            }
        }
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer("of-" + topic);
        consumer.setNamesrvAddr(nameServer);
        consumer.setAutoCommit(false);
        consumer.start();
        consumer.assign(queues);
        for (MessageQueue queue : queues) {
            consumer.seek(queue, 0);
        }
        long read = 0;
        try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(file)))) {
            List<MessageExt> messages = consumer.poll(GIVE_UP_MS);
            while (!messages.isEmpty()) {
                for (MessageExt message : messages) {
                    ByteBuffer body = ByteBuffer.wrap(message.getBody());
                    out.writeLong(body.getLong());
                    out.writeLong(body.getLong());
                    out.writeLong(message.getStoreTimestamp());
                    read++;
                }
                messages = consumer.poll(read < stored ? GIVE_UP_MS : QUIET_MS);
            }
        }
        consumer.shutdown();
        return read;
    }
}
