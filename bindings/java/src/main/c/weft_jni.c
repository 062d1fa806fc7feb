/* The native methods of dev.weft.Natives, by weft_library.h. */
#include <jni.h>
#include <stdlib.h>
#include <string.h>

#include "weft_library.h"

#define METHOD(result, name) JNIEXPORT result JNICALL Java_dev_weft_Natives_##name

static const weft_library *library_at(jlong at) { return (const weft_library *)(intptr_t)at; }
static weft_program *program_at(jlong at) { return (weft_program *)(intptr_t)at; }

static jbyteArray text(JNIEnv *env, const char *from) {
  const jsize bytes = (jsize)strlen(from);
  const jbyteArray made = (*env)->NewByteArray(env, bytes);
  if (made != NULL) (*env)->SetByteArrayRegion(env, made, 0, bytes, (const jbyte *)from);
  return made;
}

/* Throws what a function wrote, unless something is thrown already. */
static void fail(JNIEnv *env, int32_t code, const char *message) {
  if ((*env)->ExceptionCheck(env)) return;
  const jclass type = (*env)->FindClass(env, "dev/weft/WeftException");
  if (type == NULL) return;
  const jmethodID make = (*env)->GetMethodID(env, type, "<init>", "(I[B)V");
  const jbyteArray words = make == NULL ? NULL : text(env, message);
  const jobject made = words == NULL ? NULL : (*env)->NewObject(env, type, make, (jint)code, words);
  if (made != NULL) (*env)->Throw(env, (jthrowable)made);
}

static void no_memory(JNIEnv *env) { fail(env, WEFT_ERROR_MEMORY, "there is no memory for a call"); }

/* A copy of an array of bytes; NULL for null. */
static int copied(JNIEnv *env, jbyteArray from, char **to) {
  *to = NULL;
  if (from == NULL) return 1;
  const jsize bytes = (*env)->GetArrayLength(env, from);
  *to = malloc((size_t)bytes + 1);
  if (*to == NULL) {
    no_memory(env);
    return 0;
  }
  (*env)->GetByteArrayRegion(env, from, 0, bytes, (jbyte *)*to);
  (*to)[bytes] = 0;
  return 1;
}

METHOD(jlong, load)(JNIEnv *env, jclass type, jbyteArray path, jbyteArray prefix) {
  char *path_text = NULL, *prefix_text = NULL;
  weft_error error = {.size = sizeof error};
  weft_library *const functions = malloc(sizeof *functions); /* for good: libraries stay loaded */
  (void)type;
  if (functions == NULL) no_memory(env);
  int good = functions != NULL && copied(env, path, &path_text) && copied(env, prefix, &prefix_text);
  if (good) {
    const int32_t result = weft_library_load(functions, path_text, prefix_text, &error);
    good = result == WEFT_OK;
    if (!good) fail(env, result, error.message);
  }
  free(path_text);
  free(prefix_text);
  if (good) return (jlong)(intptr_t)functions;
  free(functions);
  return 0;
}

static jlong opened(JNIEnv *env, jlong functions, jbyteArray path, jobject archive, jlong bytes, jint threads, jbyteArray sha256) {
  char *path_text = NULL, *sha_text = NULL;
  weft_program *program = NULL;
  weft_error error = {.size = sizeof error};
  if (copied(env, path, &path_text) && copied(env, sha256, &sha_text)) {
    const weft_options options = {sizeof options, threads, sha_text};
    const weft_library *const weft = library_at(functions);
    const int32_t result = archive == NULL ? weft->open(path_text, &options, &program, &error)
                                           : weft->open_memory((*env)->GetDirectBufferAddress(env, archive), (size_t)bytes, &options, &program, &error);
    if (result != WEFT_OK) {
      program = NULL;
      fail(env, result, error.message);
    }
  }
  free(path_text);
  free(sha_text);
  return (jlong)(intptr_t)program;
}

METHOD(jlong, open)(JNIEnv *env, jclass type, jlong functions, jbyteArray path, jint threads, jbyteArray sha256) {
  (void)type;
  return opened(env, functions, path, NULL, 0, threads, sha256);
}

METHOD(jlong, openMemory)(JNIEnv *env, jclass type, jlong functions, jobject archive, jlong bytes, jint threads, jbyteArray sha256) {
  (void)type;
  return opened(env, functions, NULL, archive, bytes, threads, sha256);
}

METHOD(void, close)(JNIEnv *env, jclass type, jlong functions, jlong program) {
  (void)env, (void)type;
  library_at(functions)->close(program_at(program));
}

METHOD(jobjectArray, describe)(JNIEnv *env, jclass type, jlong functions, jlong program, jintArray counts) {
  weft_error error = {.size = sizeof error};
  weft_program_info info = {.size = sizeof info};
  (void)type;
  const int32_t result = library_at(functions)->describe(program_at(program), &info, &error);
  if (result != WEFT_OK) {
    fail(env, result, error.message);
    return NULL;
  }
  const jint numbers[3] = {info.inputs, info.outputs, info.threads};
  (*env)->SetIntArrayRegion(env, counts, 0, 3, numbers);
  const char *const texts[3] = {info.name, info.target, info.version};
  const jclass bytes = (*env)->FindClass(env, "[B");
  const jobjectArray made = bytes == NULL ? NULL : (*env)->NewObjectArray(env, 3, bytes, NULL);
  for (jsize k = 0; made != NULL && k < 3; ++k) (*env)->SetObjectArrayElement(env, made, k, text(env, texts[k]));
  return made;
}

METHOD(jlongArray, value)(JNIEnv *env, jclass type, jlong functions, jlong program, jboolean output, jint index, jintArray kind, jobjectArray texts) {
  weft_error error = {.size = sizeof error};
  weft_value_info info = {.size = sizeof info};
  const weft_library *const weft = library_at(functions);
  (void)type;
  const int32_t result = (output ? weft->output : weft->input)(program_at(program), index, &info, &error);
  if (result != WEFT_OK) {
    fail(env, result, error.message);
    return NULL;
  }
  const jint numbers[2] = {info.code, info.bits};
  (*env)->SetIntArrayRegion(env, kind, 0, 2, numbers);
  (*env)->SetObjectArrayElement(env, texts, 0, text(env, info.name));
  (*env)->SetObjectArrayElement(env, texts, 1, text(env, info.dtype));
  const jlongArray made = (*env)->NewLongArray(env, info.ndim);
  if (made != NULL) (*env)->SetLongArrayRegion(env, made, 0, info.ndim, (const jlong *)info.shape);
  return made;
}

/* Tensors of a call: `count` of them, their addresses and their sizes in one piece of memory; NULL: there is none. */
typedef struct tensors {
  weft_tensor *tensor;
  weft_tensor **at;
} tensors;

static int make_tensors(JNIEnv *env, jobjectArray buffers, jintArray types, jobjectArray shapes, tensors *made) {
  const jsize count = (*env)->GetArrayLength(env, shapes);
  size_t ranks = 0;
  for (jsize k = 0; k < count; ++k) {
    const jobject shape = (*env)->GetObjectArrayElement(env, shapes, k);
    ranks += (size_t)(*env)->GetArrayLength(env, (jarray)shape);
    (*env)->DeleteLocalRef(env, shape);
  }
  made->tensor = calloc(1, (size_t)(count + 1) * (sizeof(weft_tensor) + sizeof(weft_tensor *)) + (ranks + 1) * sizeof(int64_t));
  if (made->tensor == NULL) {
    no_memory(env);
    return 0;
  }
  int64_t *sizes = (int64_t *)(void *)(made->tensor + count + 1);
  made->at = (weft_tensor **)(void *)(sizes + ranks + 1);
  for (jsize k = 0; k < count; ++k) {
    weft_tensor *const t = made->at[k] = &made->tensor[k];
    const jobject shape = (*env)->GetObjectArrayElement(env, shapes, k);
    jint kind = 0;
    t->ndim = (*env)->GetArrayLength(env, (jarray)shape);
    t->shape = sizes;
    (*env)->GetLongArrayRegion(env, (jlongArray)shape, 0, t->ndim, (jlong *)sizes);
    (*env)->DeleteLocalRef(env, shape);
    (*env)->GetIntArrayRegion(env, types, k, 1, &kind);
    sizes += t->ndim;
    t->device_type = 1;
    t->code = (uint8_t)(kind >> 8);
    t->bits = (uint8_t)kind;
    t->lanes = 1;
    if (buffers == NULL) continue;
    const jobject buffer = (*env)->GetObjectArrayElement(env, buffers, k);
    t->data = (*env)->GetDirectBufferAddress(env, buffer);
    if (t->data == NULL) t->data = made->tensor; /* of buffers without bytes, which nobody reads */
    (*env)->DeleteLocalRef(env, buffer);
  }
  return !(*env)->ExceptionCheck(env);
}

METHOD(void, run)(JNIEnv *env, jclass type, jlong functions, jlong program, jobjectArray in, jintArray in_types, jobjectArray in_shapes,
                  jobjectArray storage, jintArray out_types, jobjectArray out_shapes, jlongArray results) {
  tensors ins = {NULL, NULL}, outs = {NULL, NULL};
  weft_error error = {.size = sizeof error};
  (void)type;
  if (make_tensors(env, in, in_types, in_shapes, &ins) && make_tensors(env, storage, out_types, out_shapes, &outs)) {
    const int32_t result = library_at(functions)->run(program_at(program), (const weft_tensor *const *)ins.at, outs.at, &error);
    if (result != WEFT_OK) fail(env, result, error.message);
    const jsize count = result != WEFT_OK || results == NULL ? 0 : (*env)->GetArrayLength(env, results);
    for (jsize k = 0; k < count; ++k) {
      const jobject shape = (*env)->GetObjectArrayElement(env, out_shapes, k);
      const jlong address = (jlong)(intptr_t)outs.at[k]->data;
      (*env)->SetLongArrayRegion(env, (jlongArray)shape, 0, outs.at[k]->ndim, (const jlong *)outs.at[k]->shape);
      (*env)->SetLongArrayRegion(env, results, k, 1, &address);
      (*env)->DeleteLocalRef(env, shape);
    }
  }
  free(ins.tensor);
  free(outs.tensor);
}

METHOD(void, take)(JNIEnv *env, jclass type, jlong functions, jlong result, jobject to, jlong bytes) {
  weft_tensor given = {.data = (void *)(intptr_t)result};
  (void)type;
  if (to != NULL && bytes > 0) memcpy((*env)->GetDirectBufferAddress(env, to), given.data, (size_t)bytes);
  library_at(functions)->release(&given);
}
