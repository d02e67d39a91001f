//! Unit tests of `matching`.
use super::*;

fn any(tag: u64, ignore: u64) -> Pattern {
    Pattern { src: None, tag, ignore }
}
fn from(src: u64, tag: u64, ignore: u64) -> Pattern {
    Pattern { src: Some(src), tag, ignore }
}

#[test]
fn oldest_matching_receive_wins_across_all_kinds() {
    let mut posted = Posted::default();
    posted.push(from(1, 7, 0), 'a');
    posted.push(any(0, u64::MAX), 'b');
    posted.push(any(7, 0), 'c');
    posted.push(from(2, 0, 0xff), 'd');
    let mut take = |src, tag| posted.take(src, tag).map(|taken| taken.value);
    assert_eq!(take(1, 7), Some('a'));
    assert_eq!(take(1, 7), Some('b'));
    assert_eq!(take(2, 7), Some('c'));
    assert_eq!(take(1, 7), None);
    assert_eq!(take(2, 7), Some('d'));
}

#[test]
fn a_receive_put_back_is_still_the_oldest() {
    let mut posted = Posted::default();
    posted.push(any(0, 0), 1);
    posted.push(any(0, 0), 2);
    let first = posted.take(0, 0).unwrap();
    posted.put_back(first);
    assert_eq!(posted.take(0, 0).unwrap().value, 1);
    assert_eq!(posted.drain(), [2]);
}

#[test]
fn matching_agrees_with_linear_search_on_random_traffic() {
    // A small generator with a fixed seed: the same traffic every time.
    let mut state = 0x1234_5678_u64;
    let mut random = |bound: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % bound
    };
    let masks: Vec<u64> =
        (0..24).map(|n| if n == 0 { 0 } else { (1 << (n % 6)) - 1 + n / 6 }).collect();
    let mut posted = Posted::default();
    let mut linear: Vec<(Pattern, u64)> = Vec::new();
    for number in 0..20_000 {
        if random(2) == 0 {
            let src = (random(2) == 0).then(|| random(3));
            let ignore = masks[random(24) as usize];
            let pattern = Pattern { src, tag: random(8), ignore };
            posted.push(pattern, number);
            linear.push((pattern, number));
        } else {
            let (src, tag) = (random(3), random(8));
            let wanted = linear.iter().position(|(pattern, _)| pattern.fits(src, tag));
            let taken = posted.take(src, tag);
            assert_eq!(taken.as_ref().map(|taken| taken.value), wanted.map(|at| linear[at].1));
            match (taken, wanted) {
                (Some(taken), _) if random(4) == 0 => posted.put_back(taken),
                (Some(_), Some(at)) => _ = linear.remove(at),
                _ => {}
            }
        }
    }
    let left: Vec<_> = linear.into_iter().map(|(_, number)| number).collect();
    assert_eq!(posted.drain(), left);
}

#[test]
fn oldest_message_is_found_and_claimed_message_is_skipped() {
    let mut messages = Unexpected::default();
    for (src, tag) in [(1, 5), (2, 5), (1, 6)] {
        messages.push(tag, src, (src, tag));
    }
    let first = messages.find(any(5, 0)).unwrap();
    assert_eq!(messages.get(first), Some(&(1, 5)));
    messages.claim(first);
    let second = messages.find(any(5, 0)).unwrap();
    assert_eq!(messages.get(second), Some(&(2, 5)));
    assert_eq!(messages.find(from(1, 5, 0)), None);
    let wild = messages.find(from(1, 0, u64::MAX)).unwrap();
    assert_eq!(messages.remove(wild), Some((1, 6)));
    assert_eq!(messages.remove(first), Some((1, 5)));
    assert_eq!(messages.len(), 1);
}

#[test]
fn many_messages_are_still_found_by_tag_in_order() {
    let mut messages = Unexpected::default();
    for n in 0..1000u64 {
        messages.push(n % 100, 0, n);
    }
    for n in 0..1000u64 {
        let id = messages.find(any(n % 100, 0)).unwrap();
        assert_eq!(messages.remove(id), Some(n));
    }
    assert!(messages.is_empty());
}

#[test]
fn search_in_many_messages_is_short_for_any_pattern() {
    const MANY: u64 = 100_000;
    // Any will do, and the same ones every time.
    let seed = Seed([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1]);
    let mut messages = Unexpected { seed, ..Unexpected::default() };
    for n in 0..MANY {
        messages.push((n << 8) | (n % 256), n % 50, n);
    }
    let steps = |messages: &mut Unexpected<u64>, pattern| {
        let before = messages.steps;
        let found = messages.find(pattern);
        (messages.steps - before, found.map(|id| *messages.get(id).unwrap()))
    };
    let masked = |n: u64| any(n << 8, 0xff);
    let patterns: [fn(u64) -> Pattern; 4] = [
        |n| Pattern { src: None, tag: n << 8, ignore: 0xff },
        |n| Pattern { src: Some(n % 50), tag: n << 8 | 7, ignore: 0xff },
        |n| Pattern { src: Some(n % 50), tag: 3, ignore: u64::MAX },
        |n| Pattern { src: Some(n % 50), tag: (n << 8) | (n % 256), ignore: 0 },
    ];
    for pattern in patterns {
        // The first one pays for the index, if there is none yet.
        steps(&mut messages, pattern(MANY - 1));
        for n in [MANY - 1, MANY / 2, 99, 0] {
            let (looked, found) = steps(&mut messages, pattern(n));
            assert!(looked <= 64, "{looked} messages for {:?}", pattern(n));
            let first = if pattern(n).ignore == u64::MAX { n % 50 } else { n };
            assert_eq!(found, Some(first));
        }
    }
    // A search without a match is as fast.
    for pattern in [masked(MANY), from(50, 0, u64::MAX), from(7, 8 << 8, 0xff)] {
        steps(&mut messages, pattern);
        let looked = steps(&mut messages, pattern).0;
        assert!(looked <= 64, "{looked} messages for {pattern:?}");
    }
}

#[test]
fn messages_are_found_in_order_by_every_kind_of_receive_while_names_change() {
    let mut state = 99u64;
    let mut random = |bound: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % bound
    };
    let mut messages = Unexpected::default();
    // Source, tag, number; in the order of arrival.
    let mut linear: Vec<(u64, u64, u32)> = Vec::new();
    for round in 0..15_000u64 {
        match random(10) {
            // More come than go, for the lists to become long.
            0..=5 if linear.len() < 1000 => {
                let (src, tag) = (random(6), random(4) << 4 | random(16));
                let id = messages.push(tag, src, round);
                linear.push((src, tag, id));
            }
            6 if !linear.is_empty() => {
                let (at, src) = (random(linear.len() as u64) as usize, random(6));
                linear[at].0 = src;
                messages.set_source(linear[at].2, src);
            }
            _ => {
                let src = (random(2) == 0).then(|| random(6));
                let ignore = [0, 0xf, 0xf0, u64::MAX, 1, 2, 4][random(7) as usize];
                let pattern = Pattern { src, tag: random(4) << 4 | random(16), ignore };
                let wanted = linear.iter().position(|(src, tag, _)| pattern.fits(*src, *tag));
                let wanted = wanted.map(|at| linear.remove(at).2);
                let found = messages.find(pattern);
                assert_eq!(found, wanted);
                found.map(|id| messages.remove(id));
            }
        }
    }
    assert!(messages.indices.len() > 1, "no search was long");
    assert_eq!(messages.len(), linear.len());
}

#[test]
fn a_message_finds_its_receive_among_many_by_few_looks() {
    let seed = Seed([0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7345, 0xa409_3822_299f_31d1]);
    let mut posted = Posted { seed, ..Posted::default() };
    for n in 0..100_000u64 {
        posted.push(Pattern { src: Some(n % 7), tag: n << 8, ignore: 0xff }, n);
    }
    // One that is behind many others gives reason for the index.
    assert_eq!(posted.take(17 % 7, 17 << 8).unwrap().value, 17);
    let longest = |posted: &Posted<u64>| {
        let lengths = posted.buckets.iter().map(|list| {
            let (mut id, mut n) = (list.head, 0);
            while id != NONE {
                (id, n) = (posted.entries[id].next, n + 1);
            }
            n
        });
        lengths.max().unwrap()
    };
    assert!(longest(&posted) <= 16);
    assert_eq!(posted.searched.head, NONE);
    let taken = posted.take(99_999 % 7, 99_999 << 8 | 3).unwrap();
    assert_eq!(taken.value, 99_999);
}
