static inline int
fi_export_fid(struct fid *fid, uint64_t flags, struct fid **expfid,
	void *context)
{
	struct fi_fid_export exp;

	exp.fid = expfid;
	exp.flags = flags;
	exp.context = context;
	return fi_control(fid, FI_EXPORT_FID, &exp);
}

/* Opens a named object of the library, hands it the caller's fid, closes it. */
static inline int
fi_import(uint32_t version, const char *name, void *attr, size_t attr_len,
	uint64_t flags, struct fid *fid, void *context)
{
	struct fid *target;
	int ret;

	ret = fi_open(version, name, attr, attr_len, flags, &target, context);
	if (ret)
		return ret;
	ret = fi_import_fid(target, fid, flags);
	fi_close(target);
	return ret;
}

static inline int
fi_import_log(uint32_t version, uint64_t flags, struct fid_logging *log_fid)
{
	log_fid->fid.fclass = FI_CLASS_LOG;
	return fi_import(version, "logging", NULL, 0, flags, &log_fid->fid,
		log_fid);
}
