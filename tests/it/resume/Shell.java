import com.jcraft.jsch.ChannelExec;
import com.jcraft.jsch.JSch;
import com.jcraft.jsch.Session;

/** A shell by JSch, with this program's stdin and stdout: Shell PORT USER KEY. */
public class Shell {
    public static void main(String[] arguments) throws Exception {
        JSch client = new JSch();
        client.addIdentity(arguments[2]);
        Session session = client.getSession(arguments[1], "127.0.0.1", Integer.parseInt(arguments[0]));
        session.setConfig("StrictHostKeyChecking", "no");
        session.connect();
        ChannelExec shell = (ChannelExec) session.openChannel("exec");
        shell.setCommand("sh");
        shell.setInputStream(System.in);
        shell.setOutputStream(System.out);
        shell.connect();
        while (!shell.isClosed()) {
            Thread.sleep(10);
        }
        session.disconnect();
        System.exit(shell.getExitStatus());
    }
}
