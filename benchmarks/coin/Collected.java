// Holds records of which the first EVERY-th part is read, and makes garbage all the time, so that the collector walks over what is held. Counts into a mapped file
// until it is ended. Usage: Collected COUNTER MIB EVERY.
import java.io.RandomAccessFile;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.util.SplittableRandom;

public class Collected {
    record Entry(long number, byte[] value, Entry next) {}

    static Entry entry(int number, Entry next, SplittableRandom random) {
        // Of a kilobyte a quarter does not repeat.
        byte[] value = new byte[1024];
        for (int at = 0; at < 256; at += 8) value[at] = (byte) random.nextInt();
        return new Entry(number, value, next);
    }

    public static void main(String[] words) throws Exception {
        int count = Integer.parseInt(words[1]) * 1024 * 8 / 9, hot = count / Integer.parseInt(words[2]);
        var file = new RandomAccessFile(words[0], "rw");
        MappedByteBuffer counter = file.getChannel().map(FileChannel.MapMode.READ_WRITE, 0, 8);
        counter.order(ByteOrder.nativeOrder());
        var random = new SplittableRandom(58);
        var held = new Entry[count];
        for (int at = 0; at < count; at++) held[at] = entry(at, at > 0 ? held[at - 1] : null, random);
        long done = 0;
        while (true) {
            for (int turn = 0; turn < 100; turn++, done++) {
                int at = random.nextInt(hot);
                if (held[at].number() != at) throw new IllegalStateException("entry " + at + " is another");
                // One in ten is replaced: what was held becomes garbage of the old generation.
                Entry fresh = entry(at, null, random);
                if (done % 10 == 0) held[at] = fresh;
            }
            counter.putLong(0, done);
        }
    }
}
