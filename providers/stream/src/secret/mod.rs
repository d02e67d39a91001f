//! Pre-shared key of the processes of a job, used by links to recognize unauthenticated peers.
//!
//! [`PskConfig`] is the key with its source. [`psk_handshake`] is the authentication handshake of the two
//! ends of a link, and [`records`] is the format of encrypted data after it. Both convert bytes to
//! bytes without access to a link: [`PskLink`](crate::psk_transport::PskLink) runs them. [`datagrams`] is
//! the format of datagrams.
pub mod datagrams;
pub mod psk_handshake;
pub mod records;

use ofi_provider::error::{Error, Result};
use ofi_provider::log;
use ofi_provider::param;
use ofi_provider::provider::Provider;
use ofi_provider::secret::{
    KEY_FILE, KEY_FILE_HELP, SecretMemory, key_in_environment, with_wiped_stack,
};
use ofi_provider::sys::{has_more_rights, user};
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;

/// Minimum and maximum size of a pre-shared key in bytes.
pub const SECRET_BYTES: (usize, usize) = (16, 4096);

/// Size in bytes of a derived key.
const KEY_LEN: usize = 32;

/// Label hashed before a pre-shared key, so the result is valid only here.
const KEY_LABEL: &[u8] = b"libfabric job secret 1\0";

/// Label for a program's own pre-shared key in combination with the user's.
const OWN_LABEL: &[u8] = b"libfabric job secret and a program's 1\0";

/// Pre-shared key, as used by the handshake.
pub struct SecretKey(SecretMemory);

impl SecretKey {
    /// The key of these bytes.
    fn of(secret: &[u8]) -> Result<Self> {
        Self::of_parts(&[KEY_LABEL, secret])
    }

    fn of_parts(parts: &[&[u8]]) -> Result<Self> {
        let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
        parts.iter().for_each(|part| hash.update(part));
        let mut memory = SecretMemory::new(KEY_LEN)?;
        memory.bytes_mut().copy_from_slice(hash.finish().as_ref());
        Ok(Self(memory))
    }

    /// Derives a key from this one for a purpose named by a label and a context: HMAC-SHA-256 of
    /// both. Labels end with a byte 0, so none is a prefix of another one.
    fn derive(&self, label: &[u8], context: &[u8]) -> [u8; KEY_LEN] {
        let mut derived = [0; KEY_LEN];
        with_wiped_stack(|| {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, self.bytes());
            let mut hash = ring::hmac::Context::with_key(&key);
            hash.update(label);
            hash.update(context);
            derived.copy_from_slice(hash.sign().as_ref());
        });
        derived
    }

    /// The bytes of the key.
    fn bytes(&self) -> &[u8; KEY_LEN] {
        self.0.bytes().first_chunk().unwrap_or(&[0; KEY_LEN])
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey")
    }
}

/// Pre-shared key configuration of the user.
#[derive(Clone, Debug, Default)]
pub struct PskConfig {
    key: Option<Arc<SecretKey>>,
    /// Reason for a missing key despite the user's request: then no domain is opened.
    wrong: Option<String>,
    /// The key is merely missing, so a program's own key suffices.
    missing: bool,
    /// Data on links is encrypted.
    encrypt: bool,
    /// Source of the user's key, for display.
    origin: String,
}

impl PskConfig {
    /// Creates the key from these bytes; with `encrypt` data on links is encrypted.
    pub fn new(secret: &[u8], encrypt: bool) -> Self {
        match check_len(secret.len()).and_then(|()| key_of(secret)) {
            Ok(key) => Self { key: Some(Arc::new(key)), encrypt, ..Self::default() },
            Err(why) => Self { wrong: Some(why), encrypt, ..Self::default() },
        }
    }

    /// Adds a program's own key (`auth_key` of fi_domain(3) and fi_endpoint(3)) to the user's key:
    /// peers need both. An error describes the defect of the key.
    pub fn with_own(&self, own: &[u8]) -> core::result::Result<Self, String> {
        check_len(own.len())?;
        if self.wrong.is_some() && !self.missing {
            return Ok(self.clone());
        }
        let key = match &self.key {
            None => key_of(own)?,
            Some(chosen) => SecretKey::of_parts(&[OWN_LABEL, chosen.bytes(), own])
                .map_err(|error| error.to_string())?,
        };
        Ok(Self { key: Some(Arc::new(key)), encrypt: self.encrypt, ..Self::default() })
    }

    /// Adds a program's own key (`auth_key`) to the user's key. Logs an invalid key and fails with
    /// -FI_EINVAL. Fails with -FI_EACCES if the user's key is wrong.
    pub fn with_program_key(&self, prov: &'static Provider, key: &[u8]) -> Result<Self> {
        let secret = self.with_own(key).map_err(|why| {
            log!(prov, WARN, DOMAIN, "auth_key: {why}");
            Error::INVAL
        })?;
        secret.check(prov)?;
        Ok(secret)
    }

    /// Returns true if links use the same pre-shared key and the same encryption mode.
    pub fn is_same(&self, key: Option<&SecretKey>, encrypts: bool) -> bool {
        match (self.key(), key) {
            (None, None) => true,
            (Some(own), Some(other)) => own.bytes() == other.bytes() && self.encrypt == encrypts,
            _ => false,
        }
    }

    /// Reads the user's choice from parameters of this provider, FI_TCP_AUTH_KEY_FILE and so on.
    /// The call declares them to the core, except for FI_TCP_AUTH_KEY itself, so no list of
    /// parameters shows it.
    pub fn of_params(prov: &'static Provider, encrypts: bool) -> Self {
        let file = param::string(prov, KEY_FILE, KEY_FILE_HELP);
        let encrypt = encrypts
            && param::boolean(
                prov,
                c"encrypt",
                c"encrypt what goes over the network, between peers that have the job's secret; \
                  default no",
            )
            .unwrap_or(false);
        let in_file = param::variable(prov, KEY_FILE);
        let (plaintext, value) = key_in_environment(prov).unzip();
        let plaintext = plaintext.unwrap_or_else(|| param::variable_of(prov, c"auth_key"));
        let none = file.is_none() && value.is_none();
        let origin = match &file {
            Some(file) => format!("{in_file}: {file}"),
            None => plaintext.clone(),
        };
        let chosen = match (&file, value) {
            // The environment of a program with more rights than its caller is the caller's, and
            // of that the core passes over names with slashes alone.
            (Some(file), _) if has_more_rights() && !file.starts_with('/') => {
                Err(format!("{in_file}: {file}: not a full path"))
            }
            (Some(file), _) => {
                key_in(file).map(Some).map_err(|why| format!("{in_file}: {file}: {why}"))
            }
            (None, Some(value)) => {
                log!(
                    prov,
                    WARN,
                    CORE,
                    "{plaintext}: what is in the environment others may see; {plaintext}_FILE is the \
                     better place for a secret"
                );
                check_len(value.len())
                    .and_then(|()| key_of(value.as_bytes()))
                    .map(Some)
                    .map_err(|why| format!("{plaintext}: {why}"))
            }
            (None, None) if encrypt => {
                Err(format!("{} needs a secret ({in_file})", param::variable(prov, c"encrypt")))
            }
            (None, None) => Ok(None),
        };
        match chosen {
            Ok(key) => Self { key: key.map(Arc::new), encrypt, origin, ..Self::default() },
            Err(why) => Self { wrong: Some(why), missing: none, encrypt, ..Self::default() },
        }
    }

    /// Reads the same for datagrams (FI_UDP_AUTH_KEY_FILE and FI_UDP_AUTH_KEY), always encrypted.
    pub fn of_datagram_params(prov: &'static Provider) -> Self {
        Self { encrypt: true, ..Self::of_params(prov, false) }
    }

    /// Returns -FI_EACCES and logs a line if the user requires a pre-shared key and there is none.
    pub fn check(&self, prov: &'static Provider) -> Result {
        let Some(why) = &self.wrong else { return Ok(()) };
        log!(prov, WARN, DOMAIN, "{why}; no domain is opened");
        Err(Error::ACCES)
    }

    /// Logs the permitted peers of the provider's endpoints, also for `fi_info --explain`.
    pub fn explain(&self, prov: &'static Provider) {
        let encrypted = if self.encrypt { "" } else { " not" };
        self.explain_as(prov, || {
            format!(
                "only peers that prove the job's secret are talked to ({}), and what goes over the \
                 network is{encrypted} encrypted; peers without the secret are refused, which the \
                 log tells at level warn",
                self.origin
            )
        });
    }

    /// Logs the same for datagrams, which are sealed.
    pub fn explain_datagrams(&self, prov: &'static Provider) {
        self.explain_as(prov, || {
            format!(
                "datagrams are authenticated and encrypted with the job's secret ({}); those of \
                 peers without it are dropped, which the log tells at level warn",
                self.origin
            )
        });
    }

    fn explain_as(&self, prov: &'static Provider, text: impl FnOnce() -> String) {
        if !log::enabled(prov, log::level::INFO, log::subsys::FABRIC) {
            return;
        }
        if let Some(why) = &self.wrong {
            log!(prov, INFO, FABRIC, "no domain can be opened: {why}");
        } else if self.key.is_some() {
            log!(prov, INFO, FABRIC, "{}", text());
        }
    }

    /// Returns true if the user requests a pre-shared key, even an invalid one.
    pub fn is_wanted(&self) -> bool {
        self.key.is_some() || self.wrong.is_some()
    }

    /// Returns the pre-shared key, if links are to authenticate.
    pub fn key(&self) -> Option<&Arc<SecretKey>> {
        self.key.as_ref()
    }

    /// Returns true if data on links is encrypted.
    pub fn encrypts(&self) -> bool {
        self.encrypt
    }
}

fn key_of(secret: &[u8]) -> core::result::Result<SecretKey, String> {
    SecretKey::of(secret).map_err(|error| error.to_string())
}

fn check_len(len: usize) -> core::result::Result<(), String> {
    let (least, most) = SECRET_BYTES;
    match len {
        0 => Err("the secret is empty".into()),
        len if len < least => Err(format!("the secret is shorter than {least} bytes")),
        len if len > most => Err(format!("the secret is longer than {most} bytes")),
        _ => Ok(()),
    }
}

/// Reads the key from a file not readable by other users.
fn key_in(path: &str) -> core::result::Result<SecretKey, String> {
    let text = |error: std::io::Error| error.to_string();
    // A pipe is not waited for.
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)
        .map_err(text)?;
    let envelope = file.metadata().map_err(text)?;
    if !envelope.is_file() {
        return Err("it is no file".into());
    }
    if envelope.uid() != 0 && envelope.uid() != user() {
        return Err(format!("it belongs to user {}, neither to us nor to root", envelope.uid()));
    }
    if envelope.mode() & 0o077 != 0 {
        return Err(format!(
            "others may read or change it (mode {:o}, 600 is right)",
            envelope.mode() & 0o7777
        ));
    }
    let mut memory = SecretMemory::new(SECRET_BYTES.1 + 1).map_err(|error| error.to_string())?;
    let mut len = 0;
    loop {
        match file.read(&mut memory.bytes_mut()[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(text(error)),
        }
    }
    check_len(len)?;
    key_of(&memory.bytes()[..len])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn tried(name: &str, bytes: &[u8], mode: u32) -> core::result::Result<SecretKey, String> {
        let path = std::env::temp_dir().join(format!("ofi-secret-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let key = key_in(path.to_str().unwrap());
        std::fs::remove_file(path).unwrap();
        key
    }

    #[test]
    fn key_file_must_be_private_to_its_owner() {
        let bytes = [7; 16];
        let key = tried("right", &bytes, 0o600).unwrap();
        assert_eq!(key.bytes(), SecretKey::of(&bytes).unwrap().bytes());
        assert_eq!(format!("{key:?}"), "SecretKey");
        assert!(tried("stricter", &bytes, 0o400).is_ok());
        for mode in [0o640, 0o604, 0o620, 0o602, 0o644] {
            assert!(tried("open", &bytes, mode).unwrap_err().contains("others may"), "{mode:o}");
        }
    }

    #[test]
    fn key_length_must_be_within_limits() {
        assert!(tried("empty", b"", 0o600).unwrap_err().contains("empty"));
        assert!(tried("short", &[1; 15], 0o600).unwrap_err().contains("shorter"));
        assert!(tried("longest", &[1; 4096], 0o600).is_ok());
        assert!(tried("long", &[1; 4097], 0o600).unwrap_err().contains("longer"));
        assert!(key_in("/nonexistent/key").unwrap_err().contains("No such file"));
        assert!(key_in("/").is_err() && key_in("/dev/null").is_err());
    }

    #[test]
    fn program_key_is_combined_with_the_users_key() {
        let (user, own, other) = (&[1; 16], &[2; 16], &[3; 16]);
        let key = |secret: &PskConfig| *secret.key().unwrap().bytes();
        let none = PskConfig::default();
        let of_user = PskConfig::new(user, false);
        // Without one of the user's it is as if the user had chosen it.
        assert_eq!(key(&none.with_own(own).unwrap()), key(&PskConfig::new(own, false)));
        let keys = [&none, &of_user, &PskConfig::new(other, false)]
            .map(|chosen| key(&chosen.with_own(own).unwrap()));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[1] != key(&of_user));
        assert_ne!(keys[1], key(&of_user.with_own(other).unwrap()));
        for len in [0, 15, 4097] {
            assert!(none.with_own(&vec![1; len]).is_err(), "{len}");
        }
        // An error in the user's key persists, unless the key is merely missing.
        static NO_PEER: Provider = Provider::named(c"no_peer", 0, 0);
        let wrong = PskConfig::new(b"short", true);
        assert_eq!(wrong.with_own(own).unwrap().check(&NO_PEER), Err(Error::ACCES));
        let missing = PskConfig { missing: true, ..wrong };
        let found = missing.with_own(own).unwrap();
        assert_eq!((found.check(&NO_PEER), found.encrypts()), (Ok(()), true));
    }

    #[test]
    fn secrets_are_the_same_if_links_are() {
        let [one, same, other, encrypted] =
            [(b'1', false), (b'1', false), (b'2', false), (b'1', true)]
                .map(|(byte, encrypts)| PskConfig::new(&[byte; 16], encrypts));
        let is_same =
            |a: &PskConfig, b: &PskConfig| a.is_same(b.key().map(AsRef::as_ref), b.encrypts());
        let none = PskConfig::default();
        assert!(is_same(&one, &same) && is_same(&none, &none));
        for other in [&other, &encrypted, &none] {
            assert!(!is_same(&one, other) && !is_same(other, &one));
        }
    }

    #[test]
    fn provider_without_its_required_key_opens_nothing() {
        static NO_PEER: Provider = Provider::named(c"no_peer", 0, 0);
        assert_eq!(PskConfig::default().check(&NO_PEER), Ok(()));
        let wrong = PskConfig::new(b"short", false);
        assert_eq!((wrong.check(&NO_PEER), wrong.key().is_none()), (Err(Error::ACCES), true));
        let right = PskConfig::new(b"a secret of some length", true);
        assert_eq!((right.check(&NO_PEER), right.key().is_some()), (Ok(()), true));
        assert!(!format!("{right:?}").contains("length"));
    }
}
