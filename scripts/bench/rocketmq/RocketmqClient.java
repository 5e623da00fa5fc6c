import java.io.BufferedOutputStream;
import java.io.BufferedReader;
import java.io.DataOutputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyContext;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.consumer.DefaultMQPushConsumerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/**
 * RocketMQ's side of the bench: does what each line of its standard input asks, and answers with one line.
 *
 * <pre>
 * create TOPIC QUEUES
 * send TOPIC COUNT FIRST_DUE_MS SPREAD_MS BODY_BYTES     as fast as it goes, due evenly in no order    "FAILED"
 * pace TOPIC RATE SECONDS DELAY_MS BODY_BYTES            RATE a second, each due DELAY_MS later        "COUNT FAILED"
 * watch TOPIC                                            a push consumer, which has its queues         "0"
 * settle TOPIC                                           until nothing more is stored in TOPIC         "COUNT"
 * receive TOPIC COUNT FILE                               number, due, stored, seen: four longs each    "COUNT"
 * </pre>
 *
 * A body begins with the message's number and due time; stored is the broker's clock, seen the consumer's.
 */
public final class RocketmqClient {
    private static final int IN_FLIGHT = 256;
    private static final int QUIET_MS = 1_500;
    private static final int GIVE_UP_MS = 60_000;

    private final String nameServer;
    private final DefaultMQProducer producer;
    private final Map<String, Seen> seen = new HashMap<>();

    private RocketmqClient(String nameServer) throws Exception {
        this.nameServer = nameServer;
        producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(10_000);
        producer.start();
    }

    /** The client's own threads would outlive the end of this one. */
    public static void main(String[] arguments) {
        try {
            serve(new RocketmqClient(arguments[0]));
            System.exit(0);
        } catch (Exception trouble) {
            trouble.printStackTrace();
            System.exit(1);
        }
    }

    private static void serve(RocketmqClient client) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println("= " + client.answer(line.split(" ")));
        }
    }

    /** A broker says that it has started before the name server knows it. */
    private void create(String topic, int queues) throws Exception {
        for (int tries = 1; ; tries++) {
            try {
                producer.createTopic("TBW102", topic, queues, Map.of());
                return;
            } catch (MQClientException notYet) {
                if (tries == 50) {
                    throw notYet;
                }
                Thread.sleep(200);
            }
        }
    }

    private String answer(String[] words) throws Exception {
        String topic = words[1];
        switch (words[0]) {
            case "create":
                create(topic, Integer.parseInt(words[2]));
                return "0";
            case "send":
                return "" + send(topic, dues(Integer.parseInt(words[2]), Long.parseLong(words[3]),
                        Double.parseDouble(words[4])), Integer.parseInt(words[5]));
            case "pace":
                return pace(topic, Integer.parseInt(words[2]), Double.parseDouble(words[3]),
                        Long.parseLong(words[4]), Integer.parseInt(words[5]));
            case "watch":
                seen.put(topic, new Seen(nameServer, topic));
                seen.get(topic).awaitQueues(topic, producer.fetchPublishMessageQueues(topic).size());
                return "0";
            case "settle":
                return "" + settle(topic);
            case "receive":
                if (!seen.containsKey(topic)) {
                    seen.put(topic, new Seen(nameServer, topic));
                }
                return "" + seen.remove(topic).write(Integer.parseInt(words[2]), Path.of(words[3]));
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private static long[] dues(int count, long first, double spreadMs) {
        long[] dues = new long[count];
        for (int i = 0; i < count; i++) {
            dues[i] = first + (long) (i * spreadMs / count);
        }
        Random random = new Random(43);
        for (int i = count - 1; i > 0; i--) {
            int other = random.nextInt(i + 1);
            long due = dues[i];
            dues[i] = dues[other];
            dues[other] = due;
        }
        return dues;
    }

    private long send(String topic, long[] dues, int bodyBytes) throws Exception {
        Sending sending = new Sending(topic, bodyBytes);
        for (int number = 0; number < dues.length; number++) {
            sending.send(number, dues[number]);
        }
        return sending.failed();
    }

    private String pace(String topic, int rate, double seconds, long delayMs, int bodyBytes) throws Exception {
        Sending sending = new Sending(topic, bodyBytes);
        int count = (int) (rate * seconds);
        long begin = System.nanoTime();
        for (int number = 0; number < count; number++) {
            while ((System.nanoTime() - begin) * 1e-9 * rate < number) {
                Thread.sleep(1);
            }
            sending.send(number, System.currentTimeMillis() + delayMs);
        }
        return count + " " + sending.failed();
    }

    /** At most IN_FLIGHT sends wait for their answer. */
    private final class Sending {
        private final Semaphore room = new Semaphore(IN_FLIGHT);
        private final AtomicLong failures = new AtomicLong();
        private final String topic;
        private final int bodyBytes;

        Sending(String topic, int bodyBytes) {
            this.topic = topic;
            this.bodyBytes = bodyBytes;
        }

        void send(int number, long due) throws Exception {
            ByteBuffer body = ByteBuffer.allocate(bodyBytes).putLong(number).putLong(due);
            Message message = new Message(topic, body.array());
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

        long failed() throws InterruptedException {
            room.acquire(IN_FLIGHT);
            return failures.get();
        }
    }

    /** Returns the number of messages stored in the topic, once none was added for a while. */
    private long settle(String topic) throws Exception {
        long last = 0;
        long since = System.currentTimeMillis();
        long giveUp = since + GIVE_UP_MS;
        while (true) {
            long now = System.currentTimeMillis();
            long found = stored(topic);
            if (found != last) {
                last = found;
                since = now;
                giveUp = now + GIVE_UP_MS;
            }
            if (now > giveUp || last > 0 && now > since + QUIET_MS) {
                return last;
            }
            Thread.sleep(100);
        }
    }

    private long stored(String topic) throws Exception {
        long sum = 0;
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            sum += producer.maxOffset(queue);
        }
        return sum;
    }

    /** The messages that a consumer has received. */
    private static final class Seen implements MessageListenerConcurrently {
        private final DefaultMQPushConsumer consumer;
        private long[] samples = new long[1 << 16];
        private int used;
        private long last = System.currentTimeMillis();

        Seen(String nameServer, String topic) throws Exception {
            consumer = new DefaultMQPushConsumer("of-" + topic);
            consumer.setNamesrvAddr(nameServer);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            consumer.setConsumeMessageBatchMaxSize(32);
            consumer.registerMessageListener(this);
            consumer.start();
        }

        /** A consumer that starts before the name server knows its topic would look again only after 20 s. */
        void awaitQueues(String topic, int count) throws Exception {
            DefaultMQPushConsumerImpl inside = consumer.getDefaultMQPushConsumerImpl();
            long giveUp = System.currentTimeMillis() + GIVE_UP_MS;
            while (inside.getRebalanceImpl().getProcessQueueTable().keySet().stream()
                    .filter(queue -> queue.getTopic().equals(topic)).count() < count) {
                if (System.currentTimeMillis() > giveUp) {
                    throw new IllegalStateException("no queues of " + topic);
                }
                inside.getmQClientFactory().rebalanceImmediately();
                Thread.sleep(100);
            }
        }

        @Override
        public synchronized ConsumeConcurrentlyStatus consumeMessage(
                List<MessageExt> messages, ConsumeConcurrentlyContext context) {
            last = System.currentTimeMillis();
            if (used + 4 * messages.size() > samples.length) {
                samples = Arrays.copyOf(samples, 2 * samples.length);
            }
            for (MessageExt message : messages) {
                ByteBuffer body = ByteBuffer.wrap(message.getBody());
                samples[used++] = body.getLong();
                samples[used++] = body.getLong();
                samples[used++] = message.getStoreTimestamp();
                samples[used++] = last;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        }

        private synchronized boolean over(int count) {
            int quiet = used / 4 >= count ? QUIET_MS : GIVE_UP_MS;
            return System.currentTimeMillis() > last + quiet;
        }

        /** A consumer that started before the messages were sent begins to wait now. */
        private synchronized void beginToWait() {
            last = System.currentTimeMillis();
        }

        int write(int count, Path file) throws Exception {
            beginToWait();
            while (!over(count)) {
                Thread.sleep(100);
            }
            consumer.shutdown();
            try (DataOutputStream out = new DataOutputStream(new BufferedOutputStream(Files.newOutputStream(file)))) {
                for (int i = 0; i < used; i++) {
                    out.writeLong(samples[i]);
                }
            }
            return used / 4;
        }
    }
}
