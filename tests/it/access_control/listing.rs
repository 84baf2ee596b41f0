//! Lists of names: to users only, by few reviews, in bounded time, and without a wait for the logins of others.

use std::fmt::Write as _;
use std::time::Instant;

use serde_json::{Value, json};
use switchboard::policy::allowlist::{ServiceTarget, TargetId};
use switchboard::tunnel::limits::Limits;

use super::*;

const PATH: &str = "/.well-known/switchboard/targets";

fn get(query: &str, fields: &str) -> String {
    format!("GET {PATH}{query} HTTP/1.1\r\nHost: x\r\n{fields}\r\n")
}

impl World {
    /// The whole answer to a request.
    async fn answer(&self, request: &str) -> String {
        let (mut client, _serving) = self.connect().await;
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = client.read_to_string(&mut answer);
        timeout(DEADLINE, read).await.unwrap().unwrap();
        answer
    }

    async fn list(&self, token: &str, query: &str) -> Value {
        let answer = self.answer(&get(query, &bearer(token))).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        serde_json::from_str(body).unwrap()
    }

    /// Adds a hundred Services to each of this many namespaces.
    fn crowd(&self, namespaces: usize) {
        self.crowd_with(namespaces, 100);
    }

    /// Adds this many Services to each of this many namespaces.
    fn crowd_with(&self, namespaces: usize, names: usize) {
        let address = self.target.local_addr().unwrap();
        let of_namespace = |number| (0..names).map(move |name| (format!("team-{number:03}"), format!("box-{name:02}")));
        let services = (0..namespaces)
            .flat_map(of_namespace)
            .map(|(namespace, name)| ServiceTarget {
                id: TargetId {
                    namespace: namespace.into(),
                    service: name.into(),
                },
                ..world::service("", address)
            });
        self.writer.replace(services.collect(), true);
    }

    fn reviews(&self) -> usize {
        self.cluster.access_reviews.load(Ordering::Relaxed)
    }
}

fn names(listing: &Value) -> Vec<&str> {
    let targets = listing["targets"].as_array().unwrap();
    targets
        .iter()
        .map(|target| target["names"].as_array().unwrap().last().unwrap().as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_user_lists_the_names_that_the_user_may_reach_and_a_stranger_none() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    let listing = world.list("alices", "").await;
    let row = json!({"names": ["a.team"], "port": 22, "state": "ready"});
    assert_eq!(listing, json!({"targets": [row]}));
    assert_eq!(names(&world.list("bobs", "").await), Vec::<&str>::new());
    world.cluster.allow("bob", "team/");
    world
        .shared
        .access
        .changed(&switchboard::policy::access::Change::Everywhere);
    assert_eq!(
        names(&world.list("bobs", "").await),
        ["a.team", "b.team"],
        "of the namespace"
    );
    assert_eq!(names(&world.list("bobs", "?b.t").await), ["b.team"]);
    assert_eq!(names(&world.list("bobs", "?c").await), Vec::<&str>::new());
    world
        .shared
        .allowlist
        .find_target(&"b.team:22".parse().unwrap())
        .unwrap()
        .set_cordoned(true);
    assert_eq!(world.list("bobs", "?b.").await["targets"][0]["state"], "cordoned");
    for fields in [String::new(), bearer("carols"), basic("alice", "x")] {
        let connect = world.answer(&request("a.team:22", "1.1", &fields)).await;
        assert!(connect.starts_with("HTTP/1.1 407 "), "{connect}");
        assert_eq!(world.answer(&get("", &fields)).await, connect, "{fields}");
    }
    world
        .counts("connect_requests_total{code=\"200\",reason=\"listed\"}", 6.0)
        .await;
}

#[tokio::test]
async fn where_no_names_are_listed_every_get_has_the_same_answer() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    world.shared.lists_names.store(false, Ordering::Relaxed);
    let any = world.answer("GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
    assert!(any.starts_with("HTTP/1.1 405 only CONNECT is served here\r\n"), "{any}");
    for fields in [String::new(), bearer("alices"), bearer("carols")] {
        for query in ["", "?a", "?a%20b", "/"] {
            assert_eq!(world.answer(&get(query, &fields)).await, any, "{query} {fields}");
        }
        let without_host = format!("GET {PATH} HTTP/1.1\r\n{fields}\r\n");
        assert_eq!(world.answer(&without_host).await, any);
        assert_eq!(
            world.answer(&get("", &format!("Content-Length: 9\r\n{fields}"))).await,
            any
        );
    }
    assert_eq!(world.reviews(), 0);
    world.shared.lists_names.store(true, Ordering::Relaxed);
    assert_eq!(world.answer(&get("/", &bearer("alices"))).await, any);
    let open = World::new(Mode::Open, |_| {}).await;
    let refused = open.answer(&get("", &bearer("alices"))).await;
    assert!(
        refused.starts_with("HTTP/1.1 405 names are listed to users, and access.mode is open"),
        "{refused}"
    );
}

#[tokio::test]
async fn a_denial_counts_for_a_list_also_where_it_is_only_reported() {
    let world = World::new(Mode::Report, |_| {}).await;
    assert_eq!(names(&world.list("alices", "").await), ["a.team"]);
    assert!(world.answer(&get("", "")).await.starts_with("HTTP/1.1 407 "));
}

#[tokio::test]
async fn ten_thousand_names_take_a_review_for_each_namespace_and_none_again() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    world.crowd(100);
    for namespace in ["team-003/", "team-050/", "team-099/"] {
        world.cluster.allow("alice", namespace);
    }
    let mut figures = String::new();
    for reviews in [101, 0] {
        let (before, start) = (world.reviews(), Instant::now());
        let listing = world.list("alices", "").await;
        write!(figures, " {:?}", start.elapsed()).unwrap();
        assert_eq!(names(&listing).len(), 300);
        assert_eq!(names(&listing)[299], "box-99.team-099");
        let incomplete =
            "9700 names are left out, to which there may be a right of their own: ask for names with a part of them";
        assert_eq!(listing["incomplete"], incomplete);
        assert_eq!(world.reviews() - before, reviews);
    }
    eprintln!("figure: 300 of 10,000 names were listed, and again, within{figures}");
    // Few enough for a review of each.
    world.cluster.allow("alice", "team-007/box-42");
    let listing = world.list("alices", "?team-007").await;
    assert_eq!(
        (names(&listing), listing.get("incomplete")),
        (vec!["box-42.team-007"], None)
    );
}

#[tokio::test]
async fn a_right_in_the_whole_cluster_takes_one_review_and_the_list_is_cut_aloud() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    world.crowd(6);
    world.cluster.allow("alice", "/");
    let listing = world.list("alices", "").await;
    assert_eq!((names(&listing).len(), world.reviews()), (500, 1));
    assert_eq!(
        listing["incomplete"],
        "the list is cut at 500 of 600 names: ask for names with a part of them"
    );
}

#[tokio::test]
async fn lists_wait_for_each_other_and_no_login_waits_for_them() {
    let world = Arc::new(World::new(Mode::Enforce, |_| {}).await);
    world.crowd(50);
    world.cluster.allow("bob", "team-001/box-01");
    let held = world.cluster.answers.lock().await;
    let lists = ["alices", "bobs"].map(|token| {
        let world = Arc::clone(&world);
        tokio::spawn(async move { world.answer(&get("", &bearer(token))).await })
    });
    let reviewed = async |count| {
        while world.reviews() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, reviewed(1)).await.unwrap();
    let second = world.answer(&get("", &bearer("alices"))).await;
    assert!(
        second.starts_with("HTTP/1.1 429 a list of names for this user is in progress"),
        "{second}"
    );
    // A second review is that of the login, since both lists have one together.
    let login = {
        let world = Arc::clone(&world);
        tokio::spawn(async move {
            world
                .ask(&request("box-01.team-001:22", "1.1", &bearer("bobs")))
                .await
                .0
        })
    };
    timeout(DEADLINE, reviewed(2)).await.unwrap();
    drop(held);
    assert_eq!(timeout(DEADLINE, login).await.unwrap().unwrap(), CONFIRMATION);
    for list in lists {
        assert!(list.await.unwrap().starts_with("HTTP/1.1 200 OK\r\n"));
    }
    // The slot is free again.
    world.list("alices", "").await;
}

#[tokio::test]
async fn a_list_without_answers_says_so_and_ends() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    let held = world.cluster.answers.lock().await;
    let listing = world.list("alices", "").await;
    let incomplete = "2 names are left out: their rights were not decided in time, try again";
    assert_eq!(listing, json!({"targets": [], "incomplete": incomplete}));
    assert_eq!(world.reviews(), 1);
    drop(held);
}

#[tokio::test]
async fn a_client_that_leaves_a_list_makes_room_for_the_next() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    let held = world.cluster.answers.lock().await;
    let (mut client, serving) = world.connect().await;
    client.write_all(get("", &bearer("alices")).as_bytes()).await.unwrap();
    let reviewed = async {
        while world.reviews() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, reviewed).await.unwrap();
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(client);
    timeout(DEADLINE, serving).await.unwrap().unwrap();
    drop(held);
    assert_eq!(names(&world.list("alices", "").await), ["a.team"]);
}

#[tokio::test]
async fn where_names_are_hidden_a_list_does_not_show_whether_a_text_is_a_part_of_one() {
    let world = World::new(Mode::Enforce, |options| options.hide_names = true).await;
    world.crowd(6);
    for text in ["", "?zzz", "?box-01", "?box-01.team-001", "?team"] {
        let incomplete = "names may be missing to which there is a right of their own: there are too many names here";
        let listing = world.list("alices", text).await;
        assert_eq!(listing, json!({"targets": [], "incomplete": incomplete}), "{text}");
    }
    world.cluster.allow("bob", "team-001/");
    assert_eq!(names(&world.list("bobs", "?box-01").await), ["box-01.team-001"]);
    // Likewise without an answer.
    let world = World::new(Mode::Enforce, |options| options.hide_names = true).await;
    let held = world.cluster.answers.lock().await;
    for text in ["?zzz", "?b.team"] {
        let incomplete = "names may be missing: rights were not decided in time, try again";
        let listing = world.list("alices", text).await;
        assert_eq!(listing, json!({"targets": [], "incomplete": incomplete}), "{text}");
    }
    drop(held);
}

#[tokio::test]
async fn too_many_namespaces_are_said_and_a_part_of_the_names_is_listed() {
    let world = World::new(Mode::Enforce, |_| {}).await;
    world.crowd_with(501, 1);
    world.cluster.allow("alice", "team-007/");
    let listing = world.list("alices", "").await;
    let incomplete = "501 names are left out: they are in too many namespaces to decide about each, ask for names with a part of them";
    assert_eq!(listing, json!({"targets": [], "incomplete": incomplete}));
    assert_eq!(world.reviews(), 1);
    assert_eq!(names(&world.list("alices", "?team-00").await), ["box-00.team-007"]);
}

#[tokio::test]
async fn a_name_that_leads_to_a_static_target_is_none_of_a_service() {
    let mut world = World::new(Mode::Enforce, |_| {}).await;
    world.cluster.allow("alice", "team/");
    assert_eq!(names(&world.list("alices", "").await), ["a.team", "b.team"]);
    let own = format!("a.team:22={}", world.target.local_addr().unwrap());
    world.writer.publish(&[own.parse().unwrap()], &Limits::default());
    assert_eq!(names(&world.list("alices", "").await), ["b.team"]);
}
