//! A secret that the processes of a job share, by which links tell them from strangers.
//!
//! [`JobSecret`] is the secret and where it comes from; [`proof`] is the handshake by which the two
//! ends of a link prove to each other that they have it, and [`records`] is the form of what they
//! say afterwards where that is encrypted. Both turn bytes into bytes and know no link:
//! [`LocalLink`](crate::local::LocalLink) runs them. [`datagrams`] is the form of datagrams.
pub mod datagrams;
pub mod proof;
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

/// Fewest and most bytes of a secret.
pub const SECRET_BYTES: (usize, usize) = (16, 4096);

/// Bytes of what is made of a secret.
const KEY_LEN: usize = 32;

/// What is hashed before a secret, so that the result is of use here alone.
const KEY_LABEL: &[u8] = b"libfabric job secret 1\0";

/// The same for a program's own secret where the user chose one as well.
const OWN_LABEL: &[u8] = b"libfabric job secret and a program's 1\0";

/// A secret, as the handshake takes it.
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

    /// A key made of this one for what is named by a label and a context: HMAC-SHA-256 of both. Labels end
    /// with a byte 0, so that none begins with another one.
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

/// What the user chose of secrets.
#[derive(Clone, Debug, Default)]
pub struct JobSecret {
    key: Option<Arc<SecretKey>>,
    /// Why there is no key though the user wants one: then no domain is opened.
    wrong: Option<String>,
    /// What is wrong is that there is none, so that a program's own will do.
    missing: bool,
    /// Whether what goes over links is encrypted.
    encrypt: bool,
    /// Where the user's secret is from, for people.
    origin: String,
}

impl JobSecret {
    /// The secret of these bytes; with `encrypt` what goes over links is encrypted.
    pub fn new(secret: &[u8], encrypt: bool) -> Self {
        match check_len(secret.len()).and_then(|()| key_of(secret)) {
            Ok(key) => Self { key: Some(Arc::new(key)), encrypt, ..Self::default() },
            Err(why) => Self { wrong: Some(why), encrypt, ..Self::default() },
        }
    }

    /// A program's own secret (`auth_key` of fi_domain(3) and fi_endpoint(3)) in addition to what the
    /// user chose: peers need both. An error says what is wrong with it.
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

    /// The same with a line in the log if it is none (-FI_EINVAL), and -FI_EACCES if what the user chose
    /// is wrong.
    pub fn with_program_key(&self, prov: &'static Provider, key: &[u8]) -> Result<Self> {
        let secret = self.with_own(key).map_err(|why| {
            log!(prov, WARN, DOMAIN, "auth_key: {why}");
            Error::INVAL
        })?;
        secret.check(prov)?;
        Ok(secret)
    }

    /// Whether links prove the same secret and carry the same.
    pub fn is_same(&self, key: Option<&SecretKey>, encrypts: bool) -> bool {
        match (self.key(), key) {
            (None, None) => true,
            (Some(own), Some(other)) => own.bytes() == other.bytes() && self.encrypt == encrypts,
            _ => false,
        }
    }

    /// What the user chose by parameters of this provider, FI_TCP_AUTH_KEY_FILE and so on, which
    /// are declared to the core by this call. FI_TCP_AUTH_KEY itself is not, so that no list of
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
        let (plain, value) = key_in_environment(prov).unzip();
        let plain = plain.unwrap_or_else(|| param::variable_of(prov, c"auth_key"));
        let none = file.is_none() && value.is_none();
        let origin = match &file {
            Some(file) => format!("{in_file}: {file}"),
            None => plain.clone(),
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
                    "{plain}: what is in the environment others may see; {plain}_FILE is the \
                     better place for a secret"
                );
                check_len(value.len())
                    .and_then(|()| key_of(value.as_bytes()))
                    .map(Some)
                    .map_err(|why| format!("{plain}: {why}"))
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

    /// The same for datagrams (FI_UDP_AUTH_KEY_FILE and FI_UDP_AUTH_KEY), which are always encrypted.
    pub fn of_datagram_params(prov: &'static Provider) -> Self {
        Self { encrypt: true, ..Self::of_params(prov, false) }
    }

    /// -FI_EACCES with a line in the log if the user wants a secret and there is none.
    pub fn check(&self, prov: &'static Provider) -> Result {
        let Some(why) = &self.wrong else { return Ok(()) };
        log!(prov, WARN, DOMAIN, "{why}; no domain is opened");
        Err(Error::ACCES)
    }

    /// Says in the log, and so to `fi_info --explain`, whom the provider's endpoints talk with.
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

    /// The same of datagrams, which are sealed.
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

    /// Whether the user wants a secret, be it a wrong one.
    pub fn is_wanted(&self) -> bool {
        self.key.is_some() || self.wrong.is_some()
    }

    /// The secret, if links are to prove that they have it.
    pub fn key(&self) -> Option<&Arc<SecretKey>> {
        self.key.as_ref()
    }

    /// Whether what goes over links is encrypted.
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

/// The key of the secret in a file that nobody else can read.
fn key_in(path: &str) -> core::result::Result<SecretKey, String> {
    let text = |error: std::io::Error| error.to_string();
    // A pipe is not waited for.
    let mut file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
        .open(path)
        .map_err(text)?;
    let about = file.metadata().map_err(text)?;
    if !about.is_file() {
        return Err("it is no file".into());
    }
    if about.uid() != 0 && about.uid() != user() {
        return Err(format!("it belongs to user {}, neither to us nor to root", about.uid()));
    }
    if about.mode() & 0o077 != 0 {
        return Err(format!(
            "others may read or change it (mode {:o}, 600 is right)",
            about.mode() & 0o7777
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
    fn a_file_is_taken_that_nobody_else_can_read() {
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
    fn a_secret_has_a_length_that_is_worth_the_name() {
        assert!(tried("empty", b"", 0o600).unwrap_err().contains("empty"));
        assert!(tried("short", &[1; 15], 0o600).unwrap_err().contains("shorter"));
        assert!(tried("longest", &[1; 4096], 0o600).is_ok());
        assert!(tried("long", &[1; 4097], 0o600).unwrap_err().contains("longer"));
        assert!(key_in("/nonexistent/key").unwrap_err().contains("No such file"));
        assert!(key_in("/").is_err() && key_in("/dev/null").is_err());
    }

    #[test]
    fn a_programs_own_secret_is_needed_beside_the_users() {
        let (user, own, other) = (&[1; 16], &[2; 16], &[3; 16]);
        let key = |secret: &JobSecret| *secret.key().unwrap().bytes();
        let none = JobSecret::default();
        let of_user = JobSecret::new(user, false);
        // Without one of the user's it is as if the user had chosen it.
        assert_eq!(key(&none.with_own(own).unwrap()), key(&JobSecret::new(own, false)));
        let keys = [&none, &of_user, &JobSecret::new(other, false)]
            .map(|chosen| key(&chosen.with_own(own).unwrap()));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[1] != key(&of_user));
        assert_ne!(keys[1], key(&of_user.with_own(other).unwrap()));
        for len in [0, 15, 4097] {
            assert!(none.with_own(&vec![1; len]).is_err(), "{len}");
        }
        // What is wrong with the user's stays wrong, unless it is missing only.
        static NOBODY: Provider = Provider::named(c"nobody", 0, 0);
        let wrong = JobSecret::new(b"short", true);
        assert_eq!(wrong.with_own(own).unwrap().check(&NOBODY), Err(Error::ACCES));
        let missing = JobSecret { missing: true, ..wrong };
        let found = missing.with_own(own).unwrap();
        assert_eq!((found.check(&NOBODY), found.encrypts()), (Ok(()), true));
    }

    #[test]
    fn secrets_are_the_same_if_links_are() {
        let [one, same, other, encrypted] =
            [(b'1', false), (b'1', false), (b'2', false), (b'1', true)]
                .map(|(byte, encrypts)| JobSecret::new(&[byte; 16], encrypts));
        let is_same =
            |a: &JobSecret, b: &JobSecret| a.is_same(b.key().map(AsRef::as_ref), b.encrypts());
        let none = JobSecret::default();
        assert!(is_same(&one, &same) && is_same(&none, &none));
        for other in [&other, &encrypted, &none] {
            assert!(!is_same(&one, other) && !is_same(other, &one));
        }
    }

    #[test]
    fn who_wants_a_secret_and_has_none_opens_nothing() {
        static NOBODY: Provider = Provider::named(c"nobody", 0, 0);
        assert_eq!(JobSecret::default().check(&NOBODY), Ok(()));
        let wrong = JobSecret::new(b"short", false);
        assert_eq!((wrong.check(&NOBODY), wrong.key().is_none()), (Err(Error::ACCES), true));
        let right = JobSecret::new(b"a secret of some length", true);
        assert_eq!((right.check(&NOBODY), right.key().is_some()), (Ok(()), true));
        assert!(!format!("{right:?}").contains("length"));
    }
}
