//! Unit tests of `state`.
use super::*;

#[test]
fn handles_of_nothing_are_refused_by_kind() {
    let mut state = DatState::default();
    for handle in [0, 1, 0xdead_beef] {
        assert_eq!(state.ia_close(handle, false), error(INVALID_HANDLE, HANDLE_IA));
        assert_eq!(state.ep_free(handle), error(INVALID_HANDLE, HANDLE_EP));
        assert_eq!(
            state.srqs.srq_post(&state.memory, handle, &[], 0),
            error(INVALID_HANDLE, HANDLE_SRQ)
        );
        assert_eq!(
            state.memory.pz_free(&mut state.handles, handle),
            error(INVALID_HANDLE, HANDLE_PZ)
        );
        assert_eq!(state.cr_reject(handle, &[]), error(INVALID_HANDLE, HANDLE_CR));
    }
}
