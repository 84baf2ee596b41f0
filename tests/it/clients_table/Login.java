import com.jcraft.jsch.JSch;
import com.jcraft.jsch.ProxyHTTP;
import com.jcraft.jsch.Session;

/** Logs in through an HTTP proxy at 127.0.0.1, and prints the message of the exception. */
public class Login {
    public static void main(String[] arguments) {
        try {
            Session session = new JSch().getSession("user", arguments[1], Integer.parseInt(arguments[2]));
            ProxyHTTP proxy = new ProxyHTTP("127.0.0.1", Integer.parseInt(arguments[0]));
            if (arguments.length > 4) {
                proxy.setUserPasswd(arguments[4], arguments[5]);
            }
            session.setProxy(proxy);
            session.setConfig("StrictHostKeyChecking", "no");
            session.connect(Integer.parseInt(arguments[3]));
            System.out.println("logged in");
        } catch (Exception exception) {
            System.out.println(exception.getMessage());
        }
        System.exit(0);
    }
}
