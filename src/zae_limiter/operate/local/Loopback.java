/**
 * Starts DynamoDB Local so that only this machine can reach it.
 *
 * It knows no option for the address it listens on, and listens on all of them. So its own entry point makes
 * the server, and before that starts its connectors are given an address. If a version of it is built
 * otherwise this ends with an exception: rather no engine than an open one.
 *
 * Arguments: the address, the jar, and then what DynamoDB Local is told.
 */
import java.lang.reflect.Field;
import java.util.Arrays;
import java.util.jar.JarFile;

public class Loopback {
    public static void main(String[] words) throws Exception {
        String address = words[0];
        Object options = Arrays.copyOfRange(words, 2, words.length);
        Object engine = entryPoint(words[1]).getMethod("createServerFromCommandLineArgs", String[].class).invoke(null, options);
        Field server = engine.getClass().getDeclaredField("server");
        server.setAccessible(true);
        for (Object connector : (Object[]) call(server.get(engine), "getConnectors")) {
            connector.getClass().getMethod("setHost", String.class).invoke(connector, address);
        }
        call(engine, "start");
        call(engine, "join");
    }

    private static Class<?> entryPoint(String file) throws Exception {
        try (JarFile jar = new JarFile(file)) {
            return Class.forName(jar.getManifest().getMainAttributes().getValue("Main-Class"));
        }
    }

    private static Object call(Object object, String method) throws Exception {
        return object.getClass().getMethod(method).invoke(object);
    }
}
