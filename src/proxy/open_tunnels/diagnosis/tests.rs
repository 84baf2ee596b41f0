use super::*;

/// Eleven looks, 100 ms apart, each made of the one before.
fn looks(step: impl Fn(u32, &mut Sample)) -> Vec<Sample> {
    let mut sample = Sample {
        legs: [Some(leg()); 2],
        ..Sample::default()
    };
    let each = |number| {
        sample.at = Duration::from_millis(100) * number;
        if number > 0 {
            step(number, &mut sample);
        }
        sample
    };
    (0..=10).map(each).collect()
}

/// Returns a connection in a local network.
fn leg() -> TcpInfo {
    TcpInfo {
        rtt: Duration::from_micros(300),
        lowest_rtt: Duration::from_micros(200),
        segment: 1448,
        peer_window: 1 << 20,
        ..TcpInfo::default()
    }
}

fn client(sample: &mut Sample) -> &mut TcpInfo {
    sample.legs[0].as_mut().unwrap()
}

fn target(sample: &mut Sample) -> &mut TcpInfo {
    sample.legs[1].as_mut().unwrap()
}

#[track_caller]
fn assert_verdict(expected: Verdict, load: f64, step: impl Fn(u32, &mut Sample)) {
    let looks = looks(step);
    let (verdict, evidence) = diagnose_samples(&Samples {
        looks: &looks,
        load,
        ..Samples::default()
    });
    assert_eq!(verdict, expected, "{evidence:?}");
    assert!(!evidence.is_empty());
}

#[test]
fn an_idle_tunnel_typing_and_a_fast_copy_are_not_slow() {
    assert_verdict(Verdict::Nothing, 0.01, |_, _| {});
    assert_verdict(Verdict::Nothing, 0.3, |_, sample| {
        sample.bytes.upload += 40;
        sample.bytes.download += 60;
    });
    assert_verdict(Verdict::Nothing, 1.0, |_, sample| {
        sample.bytes.download += 50 << 20;
        client(sample).not_sent = 1 << 20;
        target(sample).receive_queue = 1 << 20;
    });
    assert_eq!(diagnose_samples(&Samples::default()).0, Verdict::Nothing);
}

#[test]
fn a_limit_is_named_before_the_queue_that_it_makes() {
    assert_verdict(Verdict::Limit, 0.1, |_, sample| {
        sample.bytes.download += 100 << 10;
        sample.waited.download += Duration::from_millis(90);
        target(sample).receive_queue = 1 << 20;
    });
}

#[test]
fn a_network_is_blamed_for_what_it_shows() {
    for (retransmits, rtt) in [(1, 1), (0, 80)] {
        assert_verdict(Verdict::Client, 0.1, |_, sample| {
            sample.bytes.download += 20 << 10;
            client(sample).not_sent = 1 << 20;
            client(sample).retransmits += retransmits;
            client(sample).rtt = Duration::from_millis(rtt);
            target(sample).receive_queue = 1 << 20;
        });
        assert_verdict(Verdict::Target, 0.1, |_, sample| {
            sample.bytes.upload += 20 << 10;
            target(sample).not_sent = 1 << 20;
            target(sample).retransmits += retransmits;
            target(sample).rtt = Duration::from_millis(rtt);
        });
    }
}

#[test]
fn a_side_that_does_not_read_is_named() {
    assert_verdict(Verdict::Client, 0.0, |_, sample| {
        client(sample).not_sent = 1 << 20;
        client(sample).peer_window = 0;
    });
    assert_verdict(Verdict::Target, 0.0, |_, sample| {
        target(sample).peer_window_limited += Duration::from_millis(100);
    });
    // Over HTTP/2 the window of its stream is closed, and not that of the connection.
    assert_verdict(Verdict::Client, 0.1, |_, sample| target(sample).receive_queue = 1 << 20);
}

#[test]
fn threads_without_a_pause_are_the_proxy() {
    assert_verdict(Verdict::Proxy, 0.9, |_, sample| {
        sample.bytes.upload += 1 << 20;
        client(sample).receive_queue = 1 << 20;
    });
    assert_verdict(Verdict::Proxy, 1.0, |_, sample| sample.bytes.upload += 40);
}

#[test]
fn a_sender_of_bulk_sets_the_pace_where_nothing_else_does() {
    assert_verdict(Verdict::Target, 0.1, |_, sample| sample.bytes.download += 100 << 10);
    assert_verdict(Verdict::Client, 0.1, |_, sample| sample.bytes.upload += 100 << 10);
}

/// Returns the first sentence of evidence.
fn said(samples: &Samples<'_>) -> String {
    diagnose_samples(samples).1.remove(0)
}

#[test]
fn a_sender_of_little_without_a_pause_sets_the_pace_and_bursts_do_not() {
    // 40 KiB/s in each sample, and 45 KB/s in every other one.
    assert_verdict(Verdict::Target, 0.1, |_, look| look.bytes.download += 4 << 10);
    assert_verdict(Verdict::Client, 0.1, |number, look| {
        look.bytes.upload += u64::from(number % 2) * 9000
    });
    let steady = looks(|_, look| {
        look.bytes.download += 4 << 10;
        target(look).rtt = Duration::from_millis(80);
    });
    let steady = Samples {
        looks: &steady,
        ..Samples::default()
    };
    assert_eq!(
        said(&steady),
        "the target sends at most 40 KiB/s, 3276 bytes in each round trip of 80 ms, which are relayed at once"
    );
    // A screen every half second, and keystrokes.
    assert_verdict(Verdict::Nothing, 0.1, |number, look| {
        look.bytes.download += if number % 5 == 0 { 8000 } else { 0 };
    });
    assert_verdict(Verdict::Nothing, 0.1, |_, look| look.bytes.download += 300);
}

#[test]
fn a_tunnel_that_nothing_holds_up_has_its_bytes_and_its_pause_as_evidence() {
    let of = |looks: &[Sample]| {
        said(&Samples {
            looks,
            ..Samples::default()
        })
    };
    let idle = looks(|_, _| {});
    assert_eq!(of(&idle), "nothing held the tunnel up: no byte came in 1000 ms");
    let burst = looks(|number, look| look.bytes.download += if number == 4 { 700 } else { 0 });
    assert_eq!(
        of(&burst),
        "nothing held the tunnel up: the target sent 700 bytes in 1000 ms, with a pause of 600 ms"
    );
}

#[test]
fn a_limit_that_an_operator_has_set_is_named_as_such() {
    let waits = looks(|_, look| look.waited.download += Duration::from_millis(90));
    let mut samples = Samples {
        looks: &waits,
        ..Samples::default()
    };
    assert_eq!(
        said(&samples),
        "the download has waited 900 ms of 1000 ms for its limits"
    );
    samples.rate_overrides.download = Some("300KiB/s".parse().unwrap());
    let expected = "the download has waited 900 ms of 1000 ms for its limits: an operator has set 300KiB/s";
    assert_eq!(said(&samples), expected);
}

#[test]
fn a_long_way_is_named_for_keystrokes_and_a_dead_one_too() {
    assert_verdict(Verdict::Client, 0.1, |_, sample| {
        sample.bytes.upload += 40;
        sample.bytes.download += 40;
        client(sample).rtt = Duration::from_millis(250);
        target(sample).rtt = Duration::from_millis(120);
    });
    let looks = looks(|_, _| {}).into_iter().map(|mut sample| {
        target(&mut sample).send_queue = 40;
        sample
    });
    let looks: Vec<_> = looks.collect();
    assert_eq!(
        diagnose_samples(&Samples {
            looks: &looks,
            ..Samples::default()
        })
        .0,
        Verdict::Target
    );
}

#[test]
fn a_target_that_echoes_nothing_is_named() {
    assert_verdict(Verdict::Target, 0.0, |number, sample| {
        if number < 3 {
            sample.bytes.upload += 40;
        }
    });
}

#[test]
fn without_the_connections_limits_are_still_known() {
    assert_verdict(Verdict::Limit, 0.1, |_, sample| {
        sample.legs = [None; 2];
        sample.waited.upload += Duration::from_millis(90);
    });
    assert_verdict(Verdict::Nothing, 0.1, |_, sample| sample.legs = [None; 2]);
}
