static inline ssize_t
fi_profile_read_u64(struct fid_profile *prof_fid, uint32_t var_id,
	uint64_t *data)
{
	size_t size = sizeof(*data);

	return prof_fid->ops->read_var(prof_fid, var_id, data, &size);
}

static inline int
fi_profile_register_callback(struct fid_profile *prof_fid, uint32_t event_id,
	int (*callback)(struct fid_profile *prof_fid,
		struct fi_profile_desc *event, void *param, size_t size,
		void *context),
	void *context)
{
	return prof_fid->ops->reg_callback(prof_fid, event_id, callback, context);
}

/* The provider answers with the place of the ops in the object it made. */
static inline int
fi_profile_open(struct fid *fid, uint64_t flags, struct fid_profile **prof_fid,
	void *context)
{
	void *ops;
	int ret;

	ret = fi_open_ops(fid, "fi_profile_ops", flags, &ops, context);
	if (!ret)
		*prof_fid = (struct fid_profile *)
			((char *) ops - offsetof(struct fid_profile, ops));
	return ret;
}
