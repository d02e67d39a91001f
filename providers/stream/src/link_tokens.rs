//! Links of a net by their tokens in the engine's poller.
use std::cell::RefCell;
use std::collections::HashMap;

/// Numbers of links within a net, by the tokens of the engine.
#[derive(Debug, Default)]
pub(crate) struct LinkTokens(RefCell<HashMap<u64, u32>>);

impl LinkTokens {
    /// Returns the number of the link with this token.
    pub(crate) fn get(&self, token: u64) -> Option<u32> {
        self.0.borrow().get(&token).copied()
    }

    /// Adds a link. The engine may have reused the token of an ended link.
    pub(crate) fn insert(&self, token: u64, number: u32) {
        self.0.borrow_mut().insert(token, number);
    }

    /// Stores another token of a link in `before`, and here.
    pub(crate) fn replace(&self, before: &mut u64, token: u64, number: u32) {
        if *before != token {
            self.0.borrow_mut().remove(before);
            self.insert(token, number);
            *before = token;
        }
    }

    /// Removes an ended link, unless another link has its token now.
    pub(crate) fn remove(&self, token: u64, number: u32) {
        let mut numbers = self.0.borrow_mut();
        if numbers.get(&token) == Some(&number) {
            numbers.remove(&token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_is_found_by_its_last_token_until_it_ends() {
        let (tokens, mut token) = (LinkTokens::default(), 5);
        tokens.insert(token, 1);
        tokens.replace(&mut token, 5, 1);
        tokens.replace(&mut token, 6, 1);
        assert_eq!((token, tokens.get(5), tokens.get(6)), (6, None, Some(1)));
        tokens.remove(token, 1);
        assert_eq!(tokens.get(6), None);
    }

    #[test]
    fn end_of_a_link_keeps_the_next_link_with_its_token() {
        let tokens = LinkTokens::default();
        tokens.insert(5, 1);
        tokens.insert(5, 2);
        tokens.remove(5, 1);
        assert_eq!(tokens.get(5), Some(2));
    }
}
