/* Scatter-gather lists of the kernel. A page is the address of its first byte. */
#define kvec iovec

#ifndef KFI_OWN_PAGES
struct page;

struct bio_vec {
	struct page *bv_page;
	unsigned int bv_len;
	unsigned int bv_offset;
};

struct scatterlist {
	struct page *page;
	unsigned int offset;
	unsigned int length;
};
#endif

/**
 * What a scatter-gather list consists of; 0 is taken for KFI_KVEC.
 */
enum kfi_iov_type {
	KFI_KVEC = 1,
	KFI_BVEC,
	KFI_SGL,
};

/** Most entries of a list of pages; no provider takes more. */
#define KFI_IOV_MAX 64

#define KFI_MAJOR_VERSION 1
#define KFI_MINOR_VERSION 7

/* Flags of kfabric that libfabric has none for, and that change nothing here. */
#define KFI_MR_PHYS_MEM (1ULL << 51)
#define KFI_MR_DMA_ADDR (1ULL << 52)
#define KFI_CQ_CAN_WAIT (1ULL << 53)

typedef void (*kfi_comp_handler)(struct fid_cq *cq, void *context);
typedef void (*kfi_event_handler)(struct fid_eq *eq, void *context);

static inline uint32_t
kfi_version(void)
{
	return FI_VERSION(KFI_MAJOR_VERSION, KFI_MINOR_VERSION);
}

/* The list as one of libfabric's, in `storage` where it has to be written anew. */
static inline const struct iovec *
kfi_iov(struct iovec *storage, enum kfi_iov_type type, const void *list,
	size_t count)
{
	const struct bio_vec *biov = (const struct bio_vec *) list;
	const struct scatterlist *sgl = (const struct scatterlist *) list;
	size_t i;

	if (!type || type == KFI_KVEC)
		return (const struct iovec *) list;
	if (count > KFI_IOV_MAX || (count && !list) ||
	    (type != KFI_BVEC && type != KFI_SGL))
		return NULL;
	for (i = 0; i < count; i++) {
		if (type == KFI_BVEC) {
			storage[i].iov_base = (char *) biov[i].bv_page +
				biov[i].bv_offset;
			storage[i].iov_len = biov[i].bv_len;
		} else {
			storage[i].iov_base = (char *) sgl[i].page + sgl[i].offset;
			storage[i].iov_len = sgl[i].length;
		}
	}
	return storage;
}

/*
 * What kfabric knows of an object and libfabric does not tell: the address that
 * an endpoint was opened for, a domain's fabric, whether to wait without a limit
 * for a queue is a timeout of 0, and who calls back for a queue.
 */
struct kfi_note {
	struct kfi_note *next;
	struct fid *fid;
	struct fid_fabric *fabric;
	uint64_t mr_mode;
	void *dest_addr;
	int zero_waits;
	int wakeup;
	pthread_t thread;
	kfi_comp_handler comp_handler;
	kfi_event_handler event_handler;
	void *context;
};

/* One list for a program, however many of its files include this. */
__attribute__((weak)) struct kfi_note *kfi_notes;
__attribute__((weak)) pthread_mutex_t kfi_notes_lock = PTHREAD_MUTEX_INITIALIZER;

static inline void
kfi_note_add(struct kfi_note *note)
{
	pthread_mutex_lock(&kfi_notes_lock);
	note->next = kfi_notes;
	kfi_notes = note;
	pthread_mutex_unlock(&kfi_notes_lock);
}

/* Takes the note on an object out of the list, if there is one. */
static inline struct kfi_note *
kfi_note_take(const struct fid *fid)
{
	struct kfi_note **at, *note;

	pthread_mutex_lock(&kfi_notes_lock);
	for (at = &kfi_notes; *at && (*at)->fid != fid; at = &(*at)->next)
		;
	note = *at;
	if (note)
		*at = note->next;
	pthread_mutex_unlock(&kfi_notes_lock);
	return note;
}

/* A copy of the note on an object; all zero if there is none. */
static inline struct kfi_note
kfi_note_of(const struct fid *fid)
{
	struct kfi_note *note, copy;

	memset(&copy, 0, sizeof copy);
	pthread_mutex_lock(&kfi_notes_lock);
	for (note = kfi_notes; note && note->fid != fid; note = note->next)
		;
	if (note)
		copy = *note;
	pthread_mutex_unlock(&kfi_notes_lock);
	return copy;
}

/* What opening an object returned; on an error it is closed again. */
static inline int
kfi_opened(int ret, struct fid *fid)
{
	if (ret)
		fi_close(fid);
	return ret;
}

/* What a queue is waited on by: each queue of kfabric can be. */
static inline enum fi_wait_obj
kfi_wait_obj(enum fi_wait_obj asked)
{
	return asked == FI_WAIT_NONE || asked == FI_WAIT_UNSPEC ? FI_WAIT_FD
								: asked;
}

/* Notes that a timeout of 0 is none, as in the first version of kfabric. */
static inline int
kfi_note_first(struct fid *fid)
{
	struct kfi_note *note = (struct kfi_note *) calloc(1, sizeof *note);

	if (!note)
		return -FI_ENOMEM;
	note->fid = fid;
	note->zero_waits = 1;
	kfi_note_add(note);
	return 0;
}

/* The timeout as libfabric has it. */
static inline int
kfi_timeout(const struct fid *fid, int timeout)
{
	return !timeout && kfi_note_of(fid).zero_waits ? -1 : timeout;
}

/* What a call returned that waited, as kfabric says it. */
static inline ssize_t
kfi_waited(ssize_t ret, int timeout)
{
	return ret == -FI_EAGAIN && timeout > 0 ? -FI_ETIMEDOUT : ret;
}

static inline void *
kfi_call_back(void *arg)
{
	const struct kfi_note *note = (const struct kfi_note *) arg;
	struct pollfd fds[2];
	struct fid *fid = note->fid;
	int ret, idle = 0;

	fds[0].events = fds[1].events = POLLIN;
	fds[1].fd = note->wakeup;
	if (fi_control(fid, FI_GETWAIT, &fds[0].fd))
		return NULL;
	for (;;) {
		ret = fi_trywait(note->fabric, &fid, 1);
		if (ret == -FI_EAGAIN) {
			/* The handler may leave entries for later. */
			if (note->comp_handler)
				note->comp_handler((struct fid_cq *) fid,
						   note->context);
			else
				note->event_handler((struct fid_eq *) fid,
						    note->context);
			idle = idle < 16 ? idle + 1 : 16;
			ret = poll(&fds[1], 1, idle > 8 ? idle - 8 : 0);
		} else {
			idle = 0;
			ret = poll(fds, 2, ret ? 1 : -1);
		}
		if (ret > 0 && fds[1].revents)
			return NULL;
	}
}

static inline int
kfi_note_start(struct kfi_note *note)
{
	int ret;

	note->wakeup = eventfd(0, EFD_CLOEXEC);
	if (note->wakeup < 0)
		return -errno;
	ret = pthread_create(&note->thread, NULL, kfi_call_back, note);
	if (ret)
		close(note->wakeup);
	return -ret;
}

/* Has a queue's handler called when there is something in the queue. */
static inline int
kfi_note_handler(struct fid *fid, struct fid_fabric *fabric,
	kfi_comp_handler comp_handler, kfi_event_handler event_handler,
	void *context)
{
	struct kfi_note *note = (struct kfi_note *) calloc(1, sizeof *note);
	int ret;

	if (!note)
		return -FI_ENOMEM;
	note->fid = fid;
	note->fabric = fabric;
	note->comp_handler = comp_handler;
	note->event_handler = event_handler;
	note->context = context;
	ret = kfi_note_start(note);
	if (ret) {
		free(note);
		return ret;
	}
	kfi_note_add(note);
	return 0;
}

/**
 * Closes an object. A queue's handler is not running when this returns, unless
 * it is the handler that closes the queue.
 */
static inline int
kfi_close(struct fid *fid)
{
	struct kfi_note *note = kfi_note_take(fid);
	uint64_t one = 1;
	int ret, calls = note && (note->comp_handler || note->event_handler);

	if (calls && pthread_equal(note->thread, pthread_self())) {
		kfi_note_add(note);
		return -FI_EBUSY;
	}
	if (calls) {
		while (write(note->wakeup, &one, sizeof one) < 0 &&
		       errno == EINTR)
			;
		pthread_join(note->thread, NULL);
		close(note->wakeup);
	}
	ret = fi_close(fid);
	if (ret && note) {
		/* The object is in use, and stays what it was. */
		if (!calls || !kfi_note_start(note)) {
			kfi_note_add(note);
			return ret;
		}
	}
	if (note)
		free(note->dest_addr);
	free(note);
	return ret;
}

/**
 * fi_getinfo, which has these arguments in later versions of kfabric. The macro
 * below takes the three of the first version as well: (version, hints, info).
 */
static inline int
kfi_getinfo(uint32_t version, const char *node, const char *service,
	uint64_t flags, const struct fi_info *hints, struct fi_info **info)
{
	return fi_getinfo(version, node, service, flags, hints, info);
}

/*
 * The first version of kfabric had connected endpoints and registration by
 * virtual address alone, and so asks for no such thing.
 */
static inline int
kfi_getinfo_first(uint32_t version, const struct fi_info *hints,
	struct fi_info **info)
{
	struct fi_info *asked = hints ? fi_dupinfo(hints) : fi_allocinfo();
	int ret = -FI_ENOMEM;

	(void) version;
	if (!asked)
		return ret;
	if (!asked->ep_attr)
		asked->ep_attr = (struct fi_ep_attr *)
			calloc(1, sizeof *asked->ep_attr);
	if (!asked->domain_attr)
		asked->domain_attr = (struct fi_domain_attr *)
			calloc(1, sizeof *asked->domain_attr);
	if (asked->ep_attr && asked->domain_attr) {
		if (asked->ep_attr->type == FI_EP_UNSPEC)
			asked->ep_attr->type = FI_EP_MSG;
		if (asked->domain_attr->mr_mode == FI_MR_UNSPEC)
			asked->domain_attr->mr_mode = FI_MR_BASIC;
		ret = fi_getinfo(FI_VERSION(1, 4), NULL, NULL, 0, asked, info);
	}
	fi_freeinfo(asked);
	return ret;
}

#define KFI_GETINFO(a, b, c, d, e, f, name, ...) name
#define kfi_getinfo(...) \
	KFI_GETINFO(__VA_ARGS__, kfi_getinfo, , , kfi_getinfo_first, , ) \
	(__VA_ARGS__)
