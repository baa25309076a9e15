package headrace.frameworks;

/** A program's life as its test sees it: it says that it runs, and ends when standard input does. */
final class Life {
    private Life() {}

    static void isUp(String told) {
        System.out.println("up " + told);
    }

    /** Returns when the test closes standard input. */
    static void lasts() throws java.io.IOException {
        while (System.in.read() >= 0) {
            // nothing is asked of it
        }
    }
}
