/** Holds memory of which one piece in EVERY is read all the time. Usage: Hold MIB SECONDS EVERY. */
public class Hold {
    public static void main(String[] given) throws InterruptedException {
        int pieces = Integer.parseInt(given[0]) * 16, every = Integer.parseInt(given[2]);
        long ends = System.nanoTime() + Long.parseLong(given[1]) * 1_000_000_000L;
        byte[][] held = new byte[pieces][65536 - 16];
        for (int at = 0; at < pieces; at++) {
            long state = at + 1;
            for (int place = 0; place < held[at].length; place++) {
                // Of 64 bytes 16 do not repeat.
                if (place % 64 < 16) state = state * 6364136223846793005L + 1442695040888963407L;
                held[at][place] = (byte) (place % 64 < 16 ? state >> 56 : at);
            }
        }
        System.out.println("held");
        long sum = 0, rounds = 0;
        while (System.nanoTime() < ends) {
            for (int at = 0; at < pieces; at += every)
                for (int place = 0; place < held[at].length; place += 512) sum += held[at][place];
            rounds++;
            Thread.sleep(10);
        }
        System.out.println(rounds + " rounds, sum " + sum);
    }
}
