// A file system for tests, as a plugin of TensorFlow: `veiled:///folder/file` is the local file
// `/folder/file` with each byte XOR 0x5A. So a reader that bypasses the file system reads garbage.
//
// It can open, size and find files, which is what tf.data and tf.io.gfile need to read.

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tensorflow/c/experimental/filesystem/filesystem_interface.h"

namespace {

constexpr char kVeil = 0x5A;

int Handle(const TF_RandomAccessFile* file) {
  return static_cast<int>(reinterpret_cast<intptr_t>(file->plugin_file));
}

void Close(TF_RandomAccessFile* file) { close(Handle(file)); }

int64_t Read(const TF_RandomAccessFile* file, uint64_t offset, size_t size, char* buffer,
             TF_Status* status) {
  size_t done = 0;
  while (done < size) {
    ssize_t count = pread(Handle(file), buffer + done, size - done, offset + done);
    if (count < 0) {
      TF_SetStatusFromIOError(status, errno, "read");
      return -1;
    }
    if (count == 0) break;
    for (ssize_t at = 0; at < count; ++at) buffer[done + at] ^= kVeil;
    done += count;
  }
  TF_SetStatus(status, done == size ? TF_OK : TF_OUT_OF_RANGE, "");
  return done;
}

void Init(TF_Filesystem*, TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void Cleanup(TF_Filesystem*) {}

void Open(const TF_Filesystem*, const char* path, TF_RandomAccessFile* file, TF_Status* status) {
  int handle = open(path, O_RDONLY);
  if (handle < 0) return TF_SetStatusFromIOError(status, errno, path);
  file->plugin_file = reinterpret_cast<void*>(static_cast<intptr_t>(handle));
  TF_SetStatus(status, TF_OK, "");
}

void Stat(const TF_Filesystem*, const char* path, TF_FileStatistics* found, TF_Status* status) {
  struct stat local;
  if (stat(path, &local) != 0) return TF_SetStatusFromIOError(status, errno, path);
  found->length = local.st_size;
  found->mtime_nsec = local.st_mtime * 1000000000LL;
  found->is_directory = S_ISDIR(local.st_mode);
  TF_SetStatus(status, TF_OK, "");
}

void Exists(const TF_Filesystem* filesystem, const char* path, TF_Status* status) {
  TF_FileStatistics unused;
  Stat(filesystem, path, &unused, status);
}

int64_t Size(const TF_Filesystem* filesystem, const char* path, TF_Status* status) {
  TF_FileStatistics found;
  Stat(filesystem, path, &found, status);
  return TF_GetCode(status) == TF_OK ? found.length : -1;
}

template <typename Ops>
Ops* Zeroed(TF_FilesystemPluginInfo* info) {
  return static_cast<Ops*>(memset(info->plugin_memory_allocate(sizeof(Ops)), 0, sizeof(Ops)));
}

}  // namespace

void TF_InitPlugin(TF_FilesystemPluginInfo* info) {
  info->plugin_memory_allocate = malloc;
  info->plugin_memory_free = free;
  info->num_schemes = 1;
  info->ops = Zeroed<TF_FilesystemPluginOps>(info);
  TF_SetFilesystemVersionMetadata(info->ops);
  info->ops->scheme = strdup("veiled");
  info->ops->random_access_file_ops = Zeroed<TF_RandomAccessFileOps>(info);
  info->ops->random_access_file_ops->cleanup = Close;
  info->ops->random_access_file_ops->read = Read;
  info->ops->filesystem_ops = Zeroed<TF_FilesystemOps>(info);
  info->ops->filesystem_ops->init = Init;
  info->ops->filesystem_ops->cleanup = Cleanup;
  info->ops->filesystem_ops->new_random_access_file = Open;
  info->ops->filesystem_ops->path_exists = Exists;
  info->ops->filesystem_ops->stat = Stat;
  info->ops->filesystem_ops->get_file_size = Size;
}
