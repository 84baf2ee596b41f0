//! A session that an operator ends, and one that an operator moves.

use serde_json::Value;

use super::{Way, by_accept};
use crate::openssh::clients::ours;
use crate::openssh::login::{HOST, PATIENCE, PORT};
use crate::openssh::process::{Finished, quiet, run, until};

impl Way {
    /// The open tunnels of the proxy.
    fn tunnels(&self) -> Vec<Value> {
        let page = self.proxy.page("/tunnels");
        let (_, body) = page.split_once("\r\n\r\n").unwrap();
        let listed: Value = serde_json::from_str(body).unwrap();
        listed["tunnels"].as_array().unwrap().clone()
    }

    /// The id of its one tunnel, which is resumable.
    fn tunnel(&self) -> String {
        let one = || self.tunnels().into_iter().find(|row| row["tunnel.resumable"] == true);
        let row = until(PATIENCE, "a tunnel with a session is open", one);
        row["tunnel_id"].as_str().unwrap().to_owned()
    }

    /// `switchboard tunnels` with that, of this proxy.
    fn operate(&self, arguments: &[&str]) -> Finished {
        let mut command = quiet(ours());
        command.arg("tunnels").args(arguments);
        command.args(["--yes", "--reason", "abuse", "--admin", &self.proxy.admin.to_string()]);
        run(&mut command, b"", self.directory.path(), PATIENCE)
    }
}

#[test]
fn a_session_that_an_operator_ends_is_over_and_its_user_is_told_why() {
    let way = Way::http();
    let mut shell = way.shell();
    let id = way.tunnel();
    way.operate(&["close", &id]).succeeded();
    let said = format!(
        "switchboard: {HOST}:{PORT}: the proxy ended the session: an operator ended the connection: abuse (id {id})"
    );
    let is_told = |lines: &[String]| lines.iter().any(|line| line.trim_end() == said).then_some(());
    let told = shell.stderr.wait(PATIENCE, is_told);
    told.unwrap_or_else(|told| panic!("{told}\n{}", way.log()));
    assert_eq!(shell.process.wait(PATIENCE).code(), Some(255), "{}", way.log());
    // connect has ended before ssh, and has asked for no other tunnel.
    let lines = by_accept(&way.proxy.access_lines(1));
    assert_eq!(lines.len(), 1, "{}", way.log());
    let fields = ["reason", "operator.reason", "tunnel.resumable"].map(|field| &lines[0][field]);
    assert_eq!(
        fields,
        [&"closed_by_operator".into(), &"abuse".into(), &Value::Bool(true)]
    );
    assert_eq!(way.tunnels(), [Value::Null; 0]);
}

#[test]
fn a_session_that_an_operator_moves_goes_on_by_another_tunnel() {
    let way = Way::http();
    let mut shell = way.shell();
    let first = way.tunnel();
    way.operate(&["move", &first]).succeeded();
    shell.echo("moved");
    assert_ne!(way.tunnel(), first);
    shell.log_out();
    way.sshd.expect_connections(1);
}
