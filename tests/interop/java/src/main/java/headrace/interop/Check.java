package headrace.interop;

import java.util.Arrays;
import java.util.Objects;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

/** What a case asserts with; each throws an AssertionError that says what was found. */
final class Check {
    static void that(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void equal(Object wanted, Object found, String what) {
        that(Objects.equals(wanted, found), what + ": wanted " + wanted + ", found " + found);
    }

    static void bytes(byte[] wanted, byte[] found, String what) {
        that(Arrays.equals(wanted, found), what + ": wanted " + size(wanted) + ", found " + size(found));
    }

    /** Waits for a failure of this class. */
    static void refused(Class<? extends Exception> wanted, Future<?> future) throws InterruptedException {
        try {
            future.get();
        } catch (ExecutionException failure) {
            that(wanted.isInstance(failure.getCause()), "wanted " + wanted + ", found " + failure.getCause());
            return;
        }
        throw new AssertionError("wanted " + wanted + ", and it was accepted");
    }

    private static String size(byte[] bytes) {
        return bytes == null ? "null" : bytes.length + " bytes " + Arrays.toString(Arrays.copyOf(bytes, 16));
    }
}
