// Launches kernels one behind the other. What is read of each was written when the call was prepared, by `_written` in launches.py.
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>
#include "cuda.h"

enum { MOST = 64, MOST_MAPS = 4 };  // addresses of a call and arguments of a kernel; its tensor maps

typedef struct { uint64_t function, grid[3], threads, shared_bytes, number, maps; } Kernel;  // behind it arguments, then maps
typedef struct { uint64_t address, added, map; } Argument;  // address of the call or 0; what is added; its map, from 1

static CUresult launch_all(const char *at, const char *end, CUdevice device, CUstream stream, const uint64_t *addresses) {
  CUcontext context = NULL;
  CUresult found = cuCtxGetCurrent(&context);
  if (found == CUDA_SUCCESS && context == NULL) {  // on a thread that has not yet called CUDA
    found = cuDevicePrimaryCtxRetain(&context, device);
    if (found == CUDA_SUCCESS)
      found = cuCtxSetCurrent(context);
  }
  while (at < end && found == CUDA_SUCCESS) {
    const Kernel *kernel = (const Kernel *)at;
    const Argument *arguments = (const Argument *)(kernel + 1);
    const char *written = (const char *)(arguments + kernel->number);
    CUtensorMap maps[MOST_MAPS];
    uint64_t values[MOST];  // of 4 bytes are the first ones
    void *places[MOST];
    memcpy(maps, written, kernel->maps * sizeof(CUtensorMap));
    for (uint64_t i = 0; i < kernel->number && found == CUDA_SUCCESS; i++) {
      values[i] = addresses[arguments[i].address] + arguments[i].added;
      places[i] = &values[i];
      if (arguments[i].map) {
        places[i] = &maps[arguments[i].map - 1];
        found = cuTensorMapReplaceAddress(places[i], (void *)values[i]);
      }
    }
    CUlaunchConfig config = {
        .gridDimX = kernel->grid[0], .gridDimY = kernel->grid[1], .gridDimZ = kernel->grid[2],
        .blockDimX = kernel->threads, .blockDimY = 1, .blockDimZ = 1,
        .sharedMemBytes = kernel->shared_bytes, .hStream = stream,
    };
    if (found == CUDA_SUCCESS)
      found = cuLaunchKernelEx(&config, (CUfunction)kernel->function, places, NULL);
    at = written + kernel->maps * sizeof(CUtensorMap);
  }
  return found;
}

// launch(list, device, stream, addresses...)
static PyObject *launch(PyObject *module, PyObject *const *given, Py_ssize_t number) {
  uint64_t addresses[MOST] = {0};
  if (number < 3 || number > MOST + 2 || !PyBytes_Check(given[0]))
    return PyErr_Format(PyExc_TypeError, "expected a list, a device, a stream and fewer than %d addresses", MOST);
  for (Py_ssize_t i = 3; i < number; i++)
    if (given[i] != Py_None)
      addresses[i - 2] = PyLong_AsUnsignedLongLong(given[i]);
  CUdevice device = PyLong_AsLong(given[1]);
  CUstream stream = (CUstream)PyLong_AsUnsignedLongLong(given[2]);
  if (PyErr_Occurred())
    return NULL;
  const char *list = PyBytes_AS_STRING(given[0]), *end = list + PyBytes_GET_SIZE(given[0]);
  CUresult found;
  Py_BEGIN_ALLOW_THREADS;
  found = launch_all(list, end, device, stream, addresses);
  Py_END_ALLOW_THREADS;
  if (found == CUDA_SUCCESS)
    Py_RETURN_NONE;
  const char *text = NULL;
  cuGetErrorString(found, &text);
  return PyErr_Format(PyExc_RuntimeError, "CUDA refused a launch with error %d: %s", (int)found, text ? text : "unknown");
}

static PyMethodDef methods[] = {{"launch", (PyCFunction)(void *)launch, METH_FASTCALL, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "strobe_launches", NULL, -1, methods};

PyMODINIT_FUNC PyInit_strobe_launches(void) { return PyModule_Create(&definition); }
