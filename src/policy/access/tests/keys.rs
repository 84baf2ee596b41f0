//! Public keys of the file of users, as it changes while their tunnels run.

use super::*;
use crate::base::follow::ReloadResult;

/// A world with a file of the keys of alice, which changes while her tunnels run.
struct KeyWorld {
    world: World,
    file: tempfile::NamedTempFile,
    users: Arc<PasswordFile>,
}

impl KeyWorld {
    fn new(text: &str) -> Self {
        let world = World::new(|_| {});
        world.publish(["a".to_owned()], None);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let users = Arc::new(PasswordFile::open(file.path()).unwrap());
        let world = Self { world, file, users };
        world.apply(Arc::clone(&world.users));
        world
    }

    fn apply(&self, users: Arc<PasswordFile>) {
        let access = &self.world.access;
        let config = access.decider.config.load_full();
        let sources = Sources {
            users: Some(users),
            ..config.sources.clone()
        };
        access.apply(config.options.clone(), sources);
    }

    fn change(&self, text: &str) {
        std::fs::write(self.file.path(), text).unwrap();
        assert_eq!(self.users.reload(), ReloadResult::Loaded);
        self.world.access.users_changed();
    }

    async fn login(&self, key: &str) -> Result<(Subject, TunnelGrant), Refusal> {
        self.login_from(key, [192, 0, 2, 1]).await
    }

    async fn login_from(&self, key: &str, client: [u8; 4]) -> Result<(Subject, TunnelGrant), Refusal> {
        let request = RequestCredentials {
            credential: Some(Ok(Credential::PublicKey {
                user: "alice".into(),
                key: Arc::new(key.parse().unwrap()),
            })),
            client: client.into(),
            ..request("", 1)
        };
        let subject = self.world.access.authenticate(request).await?;
        let grant = self.world.access.authorize(&subject, &self.world.target("a")).await;
        grant.map(|grant| (subject, grant))
    }
}

const ONE: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEIPB3+pKidx74UYm+ucPHbqNjjkwTws4ffeZFtYGzob";
const OTHER: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEAUpLZ7wdT4TYWLWDfVT7Y3sURp\
                     9MrGqZ3ov1veDOR3r84rXVZLIVE7d/Tbx5g7THlMK2XN70dDxk/PngsNLKQ=";

#[tokio::test(start_paused = true)]
async fn a_key_that_leaves_the_file_ends_its_tunnels_and_no_others() {
    let keys = KeyWorld::new(&format!("alice::ops\nalice:{ONE}\nalice:{OTHER}\n"));
    let (subject, of_one) = keys.login(ONE).await.unwrap();
    let (_, of_other) = keys.login(OTHER).await.unwrap();
    assert_eq!((&*subject.user.name, &*subject.user.groups[0]), ("alice", "ops"));
    keys.change(&format!("alice:{OTHER} renamed\nalice:{ONE}\n"));
    sleep(seconds(301)).await;
    assert!(!has_ended(&of_one) && !has_ended(&of_other));
    keys.change(&format!("alice:{OTHER}\nbob:{ONE}\n"));
    assert!(has_ended(&of_one) && !has_ended(&of_other));
    // Also between the two steps of a request.
    let target = keys.world.target("a");
    for denied in [
        keys.login(ONE).await.map(drop),
        keys.world.access.authorize(&subject, &target).await.map(drop),
    ] {
        assert_eq!(denied.unwrap_err().reason, RefusalReason::CredentialsRefused);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_changes_in_the_file_ends_the_tunnels_that_it_would_open_no_more() {
    let plain = format!("alice:{OTHER}\n");
    let keys = KeyWorld::new(&plain);
    // By its address: the first of the two is the one that stays.
    let (_, stays) = keys.login_from(OTHER, [192, 0, 2, 1]).await.unwrap();
    let (_, goes) = keys.login_from(OTHER, [192, 0, 2, 2]).await.unwrap();
    keys.change(&format!("alice:from=\"192.0.2.1\" {OTHER}\n"));
    assert!(!has_ended(&stays) && has_ended(&goes));
    for changed in ["from=\"198.51.100.1\" ", "expiry-time=\"20200101\" "] {
        keys.change(&plain);
        let (_, grant) = keys.login(OTHER).await.unwrap();
        keys.change(&format!("alice:{changed}{OTHER}\n"));
        assert!(has_ended(&grant), "{changed}");
        assert!(keys.login(OTHER).await.is_err(), "{changed}");
    }
    // Or by a prefix: it proves another user then.
    keys.change(&plain);
    let (_, grant) = keys.login(OTHER).await.unwrap();
    let prefixed = PasswordFile::open(keys.file.path()).unwrap();
    keys.apply(Arc::new(prefixed.with_prefix(Some("file:".into()))));
    assert!(has_ended(&grant));
}
