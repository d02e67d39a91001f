//! Unit tests of `in_flight`.
use super::*;

#[test]
fn queue_limits_operations_in_flight_and_reserves_send_space() {
    let mut flights = InFlightOps::new(16);
    flights.add_owner();
    let mut add = |kind, most: usize| {
        let taken: Vec<_> = (0..most).map_while(|_| flights.add(None, 0, 0, kind).ok()).collect();
        (taken.len(), taken[0])
    };
    assert_eq!(add(CoreOpKind::MoreRecv, 100).0, 4);
    let (first, one) = add(CoreOpKind::FirstRecv, 100);
    assert_eq!(first, 4);
    assert_eq!(add(CoreOpKind::Transfer, 100).0, 8);
    assert!(flights.add(None, 0, 0, CoreOpKind::Transfer).is_err());
    assert!(flights.take(one).is_some());
    assert!(flights.add(None, 0, 0, CoreOpKind::MoreRecv).is_err());
    assert!(flights.add(None, 0, 0, CoreOpKind::FirstRecv).is_ok());
    assert!(flights.add(None, 0, 0, CoreOpKind::FirstRecv).is_err());
    assert_eq!(flights.take_all(0).len(), 16);
    assert_eq!(flights.receives, 0);
}

#[test]
fn each_owner_gets_its_own_transfers_back_in_the_order_of_posting() {
    let mut flights = InFlightOps::new(100);
    let owners = [flights.add_owner(), flights.add_owner()];
    let contexts: Vec<_> = (0..20)
        .map(|i| flights.add(None, i, owners[i as usize % 2], CoreOpKind::Transfer).unwrap())
        .collect();
    // The first, the last and one in the middle complete; others take their places.
    for done in [0, 18, 6] {
        assert_eq!(flights.take(contexts[done]).unwrap().token, done as u64);
    }
    assert!(flights.take(contexts[6]).is_none());
    for token in [100, 101] {
        flights.add(None, token, owners[0], CoreOpKind::Transfer).unwrap();
    }
    let tokens = |all: Vec<InFlightOp>| all.into_iter().map(|one| one.token).collect::<Vec<_>>();
    assert_eq!(tokens(flights.take_all(owners[0])), [2, 4, 8, 10, 12, 14, 16, 100, 101]);
    let odd: Vec<_> = (0..20).filter(|i| i % 2 == 1).collect();
    assert_eq!(tokens(flights.take_all(owners[1])), odd);
    assert_eq!(flights.len(), 0);
}
